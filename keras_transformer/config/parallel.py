"""A mixer that is the sum of several mixers."""

from keras_transformer.config.mixers import Mixer
from keras_transformer.config.options import option, part
from keras_transformer.config.weight import norm_of
from keras_transformer.support.checking import is_number, shorten

__all__ = ["Parallel"]


@part
class Parallel(Mixer, kind="parallel"):
    """`layers.mixers.parallel.ParallelMixers`: mixers that read the same states (Falcon-H1).

    Their outputs are added. A cache keeps what all members keep, of which one may keep tokens. With
    a member that sees later tokens it is for encoders.
    """

    layer = "keras_transformer.layers.mixers.parallel:ParallelMixers"

    members: tuple[Mixer, ...] = option("the mixers, each of another kind.")
    input_scales: tuple | list | None = option(
        "factor of the states that each member reads. None for factors of 1.", None
    )
    output_scales: tuple | list | None = option(
        "factor of the output of each member. None for factors of 1.", None
    )
    norm_output: bool = option(
        "normalize the sum of the outputs, by a norm of the type of the block's (TSMixer).", False
    )

    def check(self):
        kinds = [member.kind for member in self.members]
        if len(kinds) < 2 or len({*kinds}) < len(kinds) or self.kind in kinds:
            raise ValueError(
                "`members` must be two or more mixers, each of another kind, and none of them "
                f"{self.kind!r}, received {kinds}."
            )
        for member in self.members:
            if getattr(member, "score_bias", None) is not None:
                raise ValueError(
                    f"A mixer of kind {member.kind!r} that has a bias of scores cannot be one of "
                    "several."
                )
            if not getattr(member, "has_keys", True):
                raise ValueError("key_source='earlier' is not for one of several mixers.")
            if member.on_grid:
                raise ValueError("`sequence_reduction` is not for one of several mixers.")
        for name in ("input_scales", "output_scales"):
            scales = getattr(self, name)
            positive = all(is_number(each) and 0 < each < 1e30 for each in scales or ())
            if scales is not None and (len(scales) != len(kinds) or not positive):
                raise ValueError(
                    f"`{name}` must be {len(kinds)} positive numbers, one for each member, "
                    f"received {shorten(scales)}."
                )

    def names(self, name: str) -> tuple[str, ...]:
        """Return the names of the members' layers within the layer `name`."""
        usual = Mixer.name
        own = (m.kind if m.name == usual else m.name for m in self.members)
        return tuple(f"{name}/{each}" if name else each for each in own)

    @property
    def every_mixer(self):
        return self.members

    @property
    def bidirectional(self):
        return any(member.bidirectional for member in self.members)

    @property
    def attends(self):
        return any(member.attends for member in self.members)

    @property
    def num_heads(self) -> int:
        """Number of heads of the member that attends."""
        return next(member.num_heads for member in self.members if member.attends)

    @property
    def pattern(self):
        """Which tokens see which, of the first member that says so."""
        found = (getattr(member, "pattern", None) for member in self.members)
        return next((each for each in found if each is not None), None)

    @property
    def position(self):
        """Rotation of the first member that has one."""
        found = (getattr(member, "position", None) for member in self.members)
        return next((each for each in found if each is not None), None)

    def for_width(self, hidden_dim):
        return self.replace(members=tuple(each.for_width(hidden_dim) for each in self.members))

    def for_side(self, hidden_dim, max_length):
        members = tuple(each.for_side(hidden_dim, max_length) for each in self.members)
        made = self.replace(members=members)
        if not made.bidirectional:
            made.cached(hidden_dim)
        return made

    def weights(self, name, norm, inputs="hidden_dim"):
        pairs = zip(self.members, self.names(name), strict=True)
        found = tuple(w for member, own in pairs for w in member.weights(own, norm, inputs))
        output = f"{name}/output_norm" if name else "output_norm"
        return found + (norm_of(output, norm) if self.norm_output else ())

    def sizes(self, hidden_dim):
        found: dict[str, int] = {}
        for member in self.members:
            for name, size in member.sizes(hidden_dim).items():
                if found.setdefault(name, size) != size:
                    raise ValueError(
                        f"The members of a parallel mixer differ in {name!r}: {found[name]} and "
                        f"{size}."
                    )
        return found

    @property
    def uses_positions(self):
        return any(member.uses_positions for member in self.members)

    @property
    def divided(self):
        return {name: size for member in self.members for name, size in member.divided.items()}

    def pair_products(self, queries, keys, hidden_dim):
        return sum(each.pair_products(queries, keys, hidden_dim) for each in self.members)

    def cached_products(self, keys, hidden_dim):
        return sum(each.cached_products(keys, hidden_dim) for each in self.members)

    def kept_numbers(self, hidden_dim):
        return sum(each.kept_numbers(hidden_dim) for each in self.members)

    def cached(self, hidden_dim):
        kept = [member.cached(hidden_dim) for member in self.members]
        tokens = [each[:3] for each in kept if each[0]]
        shapes = tuple(shape for each in kept for shape in (each[3] if len(each) > 3 else ()))
        if len(tokens) > 1:
            raise ValueError("Only one member of a parallel mixer may keep tokens in a cache.")
        heads, width, window = tokens[0] if tokens else (0, 0, 1)
        return (heads, width, window, shapes) if shapes else (heads, width, window)
