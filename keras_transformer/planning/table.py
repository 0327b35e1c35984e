"""Formatting of a plan as a table."""

from keras_transformer.planning.memory import OPTIMIZER_STATES


def table(plan) -> str:
    """Format a plan as lines of text, with units."""
    lines = []

    def section(title, *rows):
        lines.extend(["", title] if lines else [title])
        rows = [row for row in rows if row is not None]
        widths = [max(len(row[i]) for row in rows) for i in range(2)]
        for label, value, *comment in rows:
            line = f"  {label.ljust(widths[0])}  {value.rjust(widths[1])}  {' '.join(comment)}"
            lines.append(line.rstrip())

    config, memory = plan.config, plan.memory
    done = "generating" if plan.generating else "training"
    tokens = f"{plan.length:,}"
    if plan.target_length is not None:
        tokens += f" and {plan.target_length:,}"
    of = "of the target: " if plan.target_length is not None else ""
    counted = f"{of}matrix products, forward and backward; all pairs in attention"
    if plan.generating:
        counted = "for the last token of a row: matrix products, with a cache"
    section(
        f"{done} a model of kind {config.kind!r}, {plan.dtype}",
        ("parameters", human(plan.parameters), f"{plan.parameters:,} of the backbone"),
        ("batch", f"{plan.batch_size:,}", f"rows of {tokens} tokens"),
        ("a token", f"{human(plan.flops_per_token)}FLOP", counted),
        ("a step", f"{human(plan.flops_per_step)}FLOP", f"{plan.tokens_per_step:,} tokens"),
    )
    rows = plan.batch_size // (plan.data_parallel * plan.fsdp)
    each = f"{rows:,} row{'' if rows == 1 else 's'} each"
    shares = f"devices with {each} share the weights, gradients and optimizer"
    copies = "copies of the model" + (f", {each}" if plan.fsdp == 1 else "")
    section(
        f"layout of {plan.devices:,} device{'s' if plan.devices > 1 else ''}",
        ("data axis", f"{plan.data_parallel:,}", copies),
        ("fsdp axis", f"{plan.fsdp:,}", shares) if plan.fsdp > 1 else None,
        ("model axis", f"{plan.model_parallel:,}", _shares(plan)),
        ("traffic", size(plan.sent_bytes), "sent by a device in a step")
        if plan.devices > 1
        else None,
    )
    states = OPTIMIZER_STATES[plan.optimizer]
    section("memory of a device", *_memory_rows(plan, memory, states))
    section("time of a step", *_time_rows(plan))
    return "\n".join(lines)


def _shares(plan) -> str:
    config, parts = plan.config, plan.model_parallel
    if parts == 1:
        return "a device holds the whole model"
    mixers = (block.mixer for block in config.last_side.every_block)
    mixer = next((mixer for mixer in mixers if mixer.attends), None)
    if mixer is None:
        return f"a device holds the mixers, and a part of {parts} of the other matrices"
    count = mixer.num_heads
    heads, shared = (
        f"{count // parts} of {count} heads",
        getattr(mixer, "num_key_value_heads", count),
    )
    if shared != count:
        heads += f" ({shared // parts} of keys and values)"
    if config.num_experts:
        return f"a device holds {heads} and {config.num_experts // parts} experts"
    return f"a device holds {heads} and {config.intermediate_dim // parts:,} inner features"


def _memory_rows(plan, memory, states):
    yield "weights", size(memory.weights), ""
    if memory.copies:
        yield "copies", size(memory.copies), "of the weights in the dtype of the computation"
    if plan.generating:
        side = plan.config.last_side
        recurrent = any(len(block.mixer.cached(side.hidden_dim)) > 3 for block in side.every_block)
        kept = "keys, values and states" if recurrent else "keys and values"
        yield "cache", size(memory.cache), kept
    else:
        if plan.lora_rank is not None:
            learn = f"of rank {plan.lora_rank}, which alone are trained"
            yield "adapters", size(memory.adapters), learn
        yield "optimizer", size(memory.optimizer), f"{plan.optimizer}, {states} a weight"
        held = "each used immediately, except the embedding's"
        if plan.fsdp > 1:
            held = "summed and cut as soon as they are known"
        elif plan.data_parallel > 1:
            held = "own and summed over the copies, replacing activations"
        yield "gradients", size(memory.gradients), held
        if memory.gathered:
            yield "gathered", size(memory.gathered), "of a block, in the activations"
        again, kept = (" (counted)", "") if plan.rematerialize else ("", " (counted)")
        yield "activations", size(memory.activations), f"all kept{kept}"
        yield "", size(memory.rematerialized), f"rematerialized{again}"
    verdict = "at the peak"
    if plan.fits is not None:
        verdict += f": {'fits' if plan.fits else 'DOES NOT FIT'} in {size(plan.device_memory)}"
    yield "together", size(plan.peak_memory), verdict


def _time_rows(plan):
    if plan.compute_seconds is None:
        yield "unknown", "", "give the FLOP/s of a device, and the bandwidth between devices"
        return
    again = ", with one more forward pass" if plan.rematerialize else ""
    yield "products", seconds(plan.compute_seconds), f"at the FLOP/s given{again}"
    if plan.transfer_seconds is not None:
        yield "transfers", seconds(plan.transfer_seconds), "at the bandwidth given"
    total = plan.step_seconds
    rate = f"{human(plan.tokens_per_step / total)}tokens/s"
    yield "together", seconds(total), f"one after the other; {rate}"


def human(number: float) -> str:
    """Format a number as `1.5 G` for 1,500,000,000, to be followed by a unit."""
    for unit in ("", "k", "M", "G", "T", "P", "E"):
        if number < 1000:
            return f"{number:.4g} {unit}"
        number /= 1000
    return f"{number:.4g} Z"


def size(count: float) -> str:
    """Format a number of bytes, such as `1.50 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1000
    return f"{count:.2f} TB"


def seconds(value: float) -> str:
    """Format a time, such as `1.50 ms`."""
    unit, factor = ("s", 1) if value >= 1 else ("ms", 1e3) if value >= 1e-3 else ("us", 1e6)
    return f"{value * factor:.2f} {unit}"
