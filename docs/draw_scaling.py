"""Draws the picture of docs/scaling.md: `python docs/draw_scaling.py`, about 20 seconds."""

from pathlib import Path

import keras_transformer as kt

PICTURE = Path(__file__).with_name("scaling_devices.svg")
DEVICES = [2**power for power in range(11)]
LENGTH = 4096
# Axes besides the one that takes the remaining devices, and that one.
LAYOUTS = {
    "shared weights (fsdp)": (1, "fsdp"),
    "copies (data)": (1, "data"),
    "model=8, shared weights (fsdp)": (8, "fsdp"),
    "model=8, copies (data)": (8, "data"),
}


def planned(config: kt.TransformerConfig, devices: int, model: int, axis: str) -> tuple | None:
    """Return the gigabytes that a device holds and sends in a step, or None without that layout."""
    if devices % model:
        return None
    plan = kt.planning.make_plan(
        config,
        devices=devices,
        batch_size=devices,
        length=LENGTH,
        dtype="mixed_bfloat16",
        model_parallel=model,
        fsdp=devices // model if axis == "fsdp" else 1,
        device_memory=1,  # so that blocks are recomputed in each layout
    )
    return plan.peak_memory / 1e9, plan.sent_bytes / 1e9


def main():
    """Plan each layout for 1 to 1,024 devices, and draw what a device holds and sends."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    config = kt.checkpoints.load_config("llama3_8b_en", load_weights=False)[0]
    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for label, (model, axis) in LAYOUTS.items():
        found = [(n, *each) for n in DEVICES if (each := planned(config, n, model, axis))]
        devices, held, sent = zip(*found, strict=True)
        style = "-" if axis == "fsdp" else "--"
        for panel, values in zip(panels, (held, sent), strict=True):
            panel.plot(devices, values, style, marker=".", label=label)
    for panel, title in zip(
        panels, ("GB that a device holds", "GB it sends in a step"), strict=True
    ):
        panel.set(title=title, xlabel="devices", xscale="log", ylim=(0, 200))
        panel.set_xticks([1, 8, 64, 1024], ["1", "8", "64", "1,024"])
        panel.minorticks_off()
        panel.set_yticks([0, 40, 80, 120, 160, 200])
        panel.grid(alpha=0.3)
    panels[1].legend(frameon=False, fontsize=8)
    figure.savefig(PICTURE, metadata={"Date": None})


if __name__ == "__main__":
    main()
