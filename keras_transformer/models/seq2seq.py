"""The encoder-decoder backbone, the original Transformer."""

import functools
from collections.abc import Mapping

import keras
from keras import ops

from keras_transformer.config import SIDES, TransformerConfig
from keras_transformer.layers.arguments import agree, known_shape, refuse_unused, show_shape
from keras_transformer.layers.projector import Projector
from keras_transformer.layers.stems import Input
from keras_transformer.models.backbone import Backbone, check_states
from keras_transformer.models.feature_merger import (
    MIXED_STATES,
    MIXED_WEIGHTS,
    OFFSETS,
    PLACED_STATES,
    PREFIX_MASK,
    FeatureMerger,
    PlaceholderTokens,
    joined_states,
    placed_inputs,
)
from keras_transformer.models.stack import ForwardContext, positions_of


@keras.saving.register_keras_serializable(package="keras_transformer")
class Seq2Seq(Backbone):
    """An encoder-decoder: the decoder attends to the encoded source and to earlier tokens.

    Both share one token embedding. With a stem of `"queries"` the decoder reads trained object
    queries in place of tokens. With a `placeholder_id` the decoder does not attend to the
    source; instead the projected states of the encoder replace its placeholder tokens. With a
    `source` in the config the encoder attends to the states of a third side, such as an image that
    its text asks about; or, with placeholder_side="encoder", these states replace placeholder
    tokens of the encoder. With `sound` the states of recordings replace placeholders too. With
    `queries`, states that attend to those of an image are what replaces placeholders.

    Args:
        config: `TransformerConfig` of kind `"seq2seq"`.
        dtype: dtype or dtype policy.
        name: str.

    Call arguments:
        inputs: dict of `encoder_token_ids` int `(batch, source_length)`, `encoder_padding_mask`
            bool of the same shape, `decoder_token_ids` int `(batch, target_length)`, and
            `decoder_padding_mask` bool of the same shape. The encoder's two arrays are not needed
            once a cache is filled. `encoder_states` may be given instead of `encoder_token_ids`,
            and the encoder's mask then belongs to them. For packed rows also
            `encoder_position_ids`, `encoder_pack_ids`, `decoder_position_ids`, `decoder_pack_ids`,
            int of the same shapes: a target token sees the source tokens of its own document. With
            a `query_stream` also `decoder_prefix` and `decoder_prefix_start`, see `TokenStem`. With
            `placeholder_visibility="prompt"` also `decoder_prefix_mask`, bool, the tokens of the
            prompt. Rows with other numbers of inputs than one, such as images, have
            `decoder_placed_states` int `(batch, most)`: the number of the state that replaces each
            placeholder of a row, counted over the states of all inputs of the batch, which the
            projector's separator follows, and -1 behind them. `encoder_images` then has each image
            once, and is left out of a batch without images. If positions have several axes, also
            `decoder_placed_offsets` int `(batch, most, axes + 1)`: what is added to the place of a
            placeholder in its row for its position on each axis, and, the last number, to the
            places of the tokens behind it. A model with a separator also takes
            `decoder_mixed_states` int `(batch, most_mixed, 4)` and `decoder_mixed_weights` float of
            the same shape: weighted sums of four states, whose numbers follow that of the
            separator, row by row. With a `source` also its arrays, such as `source_images`. With
            placeholder_side="encoder" the names of what is placed begin with `encoder_`, and the
            images are `source_images`. With `sound` the states of recordings are numbered behind
            those of all images, and `sound_frames` and `sound_padding_mask` have each recording
            once. With object queries only the arrays of the encoder, such as
            `encoder_images`.
        cache: optional `generation.Cache` that the decoder tokens continue.
        part: str, what to compute: `"states"`; from given states `"logits"`; or `"encode"`, from a
            dict of the arguments of the method `encode`.

    Returns:
        The decoder's last hidden state, float `(batch, target_length, hidden_dim)`, and with a
        cache also the updated cache.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    config = kt.TransformerConfig(
        kind="seq2seq", vocabulary_size=100, hidden_dim=32, num_layers=2, num_heads=4,
        intermediate_dim=64,
    )
    source, target = np.array([[5, 6, 7]]), np.array([[1, 8]])
    backbone = kt.models.Seq2Seq(config)
    states = backbone({"encoder_token_ids": source, "decoder_token_ids": target})
    assert states.shape == (1, 2, 32)
    ```

    Source: Vaswani et al. 2017, section 3; with placeholders: Liu et al. 2023, "Visual Instruction
    Tuning", section 4.1; with queries: Li et al. 2023, "BLIP-2", section 3.
    """

    kind = "seq2seq"

    def __init__(self, config: TransformerConfig, dtype=None, name: str | None = None, **kwargs):
        reads_tokens = getattr(config, "stem", None) is None
        super().__init__(config, dtype=dtype, name=name, tokens=reads_tokens, **kwargs)
        encoder, decoder = config.side("encoder"), config.side("decoder")
        shared = self.token_embedding
        if encoder.stem is not None:
            shared = None
        elif not config.share_embeddings:
            shared = self._token_embedding(encoder, "encoder_token_embedding", tied=True)
        self.encoder_token_embedding = shared
        self.placeholder_tokens = places = PlaceholderTokens.from_config(config)
        in_encoder, in_decoder = (places is not None and places.side == each for each in SIDES)
        self.source_stem = self.source = width = None
        if config.source is not None:
            self.source_stem, self.source = self._side(config.side("source"), None, name="source")
            width = None if in_encoder else config.source.hidden_dim
        self.encoder_stem, self.encoder = self._side(encoder, shared, width)
        self.queries_stem = self.queries = None
        if config.queries is not None:
            width = getattr(config, places.images).hidden_dim
            made = self._side(config.side("queries"), None, width, name="queries")
            self.queries_stem, self.queries = made
        self.sound_stem = self.sound = self.sound_projector = None
        if config.sound is not None:
            made = self._side(config.side("sound"), None, name="sound")
            self.sound_stem, self.sound = made
        self.projector, self.source_dim = None, encoder.hidden_dim
        self.stacked_projectors, self._stacked_layers = [], ()
        if config.projector is not None:
            make = functools.partial(Projector, config, self.initializer, dtype=self.dtype_policy)
            self.projector = make(name="projector")
            if config.sound_projector is not None:
                self.sound_projector = Projector(
                    config.of_sound,
                    self.initializer,
                    name="sound_projector",
                    dtype=self.dtype_policy,
                )
            if config.placeholders is not None:
                self._stacked_layers = tuple(config.placeholders.stacked_layers)
            self.stacked_projectors = [
                make(normalized="squares", name=f"stacked_projector_{i}")
                for i in range(len(self._stacked_layers))
            ]
            if not in_encoder:
                self.source_dim = decoder.hidden_dim * (1 + len(self._stacked_layers))
        self.decoder_stem, self.decoder = self._side(
            decoder, self.token_embedding, None if in_decoder else self.source_dim
        )
        self._checked_side = None
        if places is not None:  # placeholders may be outside the vocabulary and have no positions
            side = getattr(config, places.side)
            apart = places.count if places.apart else 0
            self._checked_side = side.replace(
                max_sequence_length=side.max_sequence_length + apart,
                input=side.input.replace(
                    vocabulary_size=max(side.input.vocabulary_size, places.token + 1)
                ),
            )
            if places.apart and config.side(places.side).position == "learned":
                stem = self.sides[f"{places.side}_"][0]
                stem.position_embedding.uncounted = places.count
        self.build()

    def build(self, input_shape=None):
        if self.encoder_token_embedding is not None and not self.config.share_embeddings:
            self.encoder_token_embedding.build((None, None))
        for projector in (self.projector, self.sound_projector, *self.stacked_projectors):
            if projector is not None:
                projector.build()
        super().build(input_shape)

    @property
    def sides(self) -> dict:
        return {
            f"{name}_": (getattr(self, f"{name}_stem"), getattr(self, name))
            for name in self.config.side_names
        }

    def _inputs_of_sides(self) -> list:
        places, found = self.placeholder_tokens, super()._inputs_of_sides()
        if places is None:
            return found
        further = placed_inputs(self.config)
        if self.projector is not None and self.projector.separator is not None:
            further = (*further, MIXED_STATES, MIXED_WEIGHTS)
        if places.visibility == "prompt":
            further = (*further, PREFIX_MASK)
        place = list(self.sides).index(f"{places.side}_")
        prefix, arrays, _ = found[place]
        found[place] = prefix, (*arrays, *further), self._checked_side
        return found

    @property
    def input_arrays(self) -> tuple[Input, ...]:
        if self.config.stem is not None:  # the queries also need the positions of the states
            return super().input_arrays
        states = Input("encoder_states", "float32", (None, self.source_dim))
        return (*super().input_arrays, states)

    def checked_inputs(self, inputs, *args, **kwargs) -> dict:
        inputs = super().checked_inputs(inputs, *args, **kwargs)
        if "encoder_states" in inputs:
            check_states("encoder_states", inputs["encoder_states"], self.source_dim)
        places = self.placeholder_tokens
        if places is not None and f"{places.side}_token_ids" in inputs:
            shown = {self.id_inputs[0], self._placed}
            shown |= {"encoder_states", "sound_frames"} if places.side == "decoder" else set()
            if not shown.isdisjoint(inputs):
                self._check_placed(inputs)
        return inputs

    @property
    def _placed(self) -> str:
        """Name of the input that says which states replace placeholders."""
        return f"{self.placeholder_tokens.side}_{PLACED_STATES.name}"

    def needed_inputs(self, inputs, needed):
        places = self.placeholder_tokens
        if places is None or not isinstance(inputs, Mapping):
            return needed
        needed = tuple(name for name in needed if not name.startswith("sound_"))
        if all(inputs.get(name) is None for name in (self._placed, "sound_frames")):
            return needed
        images = f"{places.images}_"  # of which the batch may have none
        return tuple(name for name in needed if not name.startswith(images))

    def _check_placed(self, inputs) -> None:
        """Raise ValueError unless the ids fit the states that replace some of them."""
        places = self.placeholder_tokens
        name = f"{places.side}_token_ids"
        ids, mask = inputs[name], inputs.get(f"{places.side}_padding_mask")
        if places.axes:
            self._check_offsets(inputs)
        if inputs.get("sound_frames") is not None and inputs.get(self._placed) is None:
            raise ValueError(
                f"The states of recordings are behind those of images: give `{self._placed}`, int "
                "(batch, most), which state replaces each placeholder of a row."
            )
        places.check(name, ids, mask, inputs.get(self._placed))
        if places.visibility == "prompt" and "decoder_prefix_mask" not in inputs:
            raise ValueError(
                "The tokens of a prompt see each other: give `decoder_prefix_mask`, bool like the "
                "ids, True for placeholders and prompt and False for the tokens after them."
            )

    def _check_offsets(self, inputs) -> None:
        """Raise ValueError unless the states that are placed have positions on each axis."""
        named = self._placed, f"decoder_{OFFSETS}"
        placed, offsets = map(inputs.get, named)
        if (placed is None) != (offsets is None):
            raise ValueError(
                f"The positions of this model have {self.placeholder_tokens.axes} axes: give "
                f"`{named[0]}` and `{named[1]}` together, or neither for rows without images."
            )
        if offsets is None:
            return
        reason = f"the positions follow from `{named[1]}`."
        refuse_unused(reason, decoder_position_ids=inputs.get("decoder_position_ids"))
        sizes = [known_shape(array) for array in (placed, offsets)]
        if None not in sizes and not agree(*(size[:2] for size in sizes)):
            raise ValueError(
                f"`{named[1]}` must have a row of numbers for each of `{named[0]}`, "
                f"{show_shape(sizes[0])}, received {show_shape(sizes[1])}."
            )

    def prompt_tokens(self, inputs):
        ids, mask = super().prompt_tokens(inputs)
        most, places = self.decoder.config.vocabulary_size - 1, self.placeholder_tokens
        outside = places is not None and places.side == "decoder"
        return (ops.minimum(ids, most) if outside else ids), mask

    def encode(
        self, token_ids=None, padding_mask=None, training: bool = False, position_ids=None,
        pack_ids=None, **arrays,
    ):  # fmt: skip
        """Encode the source to the decoder's input, float `(batch, source_length, width)`.

        The result holds the encoder's states, with a `projector` in the width of the decoder, and
        beside them those of its `stacked_layers`, if the config has any.
        `arrays` are the named inputs of an encoder that does not read tokens.
        """
        inputs = {"token_ids": token_ids, "padding_mask": padding_mask}
        inputs |= {"position_ids": position_ids, "pack_ids": pack_ids, **arrays}
        inputs = {name: value for name, value in inputs.items() if value is not None}
        if isinstance(token_ids, keras.KerasTensor):
            return self(inputs, part="encode", training=training)
        if self.source is not None:
            raise ValueError(
                "The encoder reads the states of a `source`, which `encode` does not take: call "
                "the model with the arrays of all sides."
            )
        return self._encoded(inputs, {}, (), training)[0]["encoder_states"]

    def _encoded(self, inputs, source, collect, training):
        """Return what the decoder reads, see `_of_side`, and the collected values by name."""
        options = {"collect": collect, "training": training}
        places, attended, before = self.placeholder_tokens, {}, {}
        in_encoder = places is not None and places.side == "encoder"
        if in_encoder and self._takes("source", source):
            attended, before = self._projected("source", source, **options)
        elif self.source is not None and not in_encoder:
            attended, before = self._of_side("source", source, **options)
        if in_encoder:
            merger = self._merger(attended.get("encoder_states"), inputs)
            encoded, found = self._of_side("encoder", inputs, merger=merger, **options)
        else:
            encoded, found = self._projected("encoder", inputs, **options, **attended)
        return encoded, {**before, **found}

    def _heard(self, inputs, collect, training):
        """Return the states of recordings in the decoder's width, and the collected values."""
        read, found = self._of_side("sound", inputs, collect=collect, training=training)
        states = read["encoder_states"]
        return states if self.sound_projector is None else self.sound_projector(states), found

    def _takes(self, name: str, inputs) -> bool:
        """Return whether the inputs of a side have what it reads."""
        stem = self.sides[f"{name}_"][0]
        return any(each.required and each.name in inputs for each in stem.inputs)

    def _projected(self, name, inputs, collect, training, **attended):
        """Return what another side reads of a side, and the collected values, as `_of_side`."""
        options = {"collect": collect, "training": training}
        if self._stacked_layers:
            options["collect"] = tuple(dict.fromkeys((*collect, "states")))
        encoded, found = self._of_side(name, inputs, **options, **attended)
        states = encoded["encoder_states"]
        if not self.config.place_class_token:
            states = states[:, self.config.side(name).stem.num_tokens :]
        if self.queries is not None:
            read = {"encoder_states": states, "encoder_padding_mask": None}
            encoded, more = self._of_side("queries", {"attended": states}, **options, **read)
            states, found = encoded["encoder_states"], {**found, **more}
        if self.projector is not None:
            states = self.projector(states)
        if self._stacked_layers:
            behind = found["encoder_states"][1:]
            if "states" not in collect:
                del found["encoder_states"]
            stacked = zip(self.stacked_projectors, self._stacked_layers, strict=True)
            others = [projector(behind[i]) for projector, i in stacked]
            states = ops.concatenate([states, *others], axis=-1)
        return {**encoded, "encoder_states": states}, found

    def _of_side(self, name, inputs, collect, training, merger=None, **attended):
        """Run a side that is read, with the states of a `merger` among its own, if there are any.

        Returns the arguments of a stack that attends to it, its states, their mask and, if there
        are any, their positions; and the collected values.
        """
        stem, stack = self.sides[f"{name}_"]
        if merger is None:
            embedded = stem(inputs, training=training)
        else:
            embedded, _ = merger.embedded(stem, training=training)
        run = ForwardContext(embedded.states, embedded._asdict(), collect=collect)
        attended |= positions_of(embedded)
        found = stack(embedded.states, run=run, training=training, **attended)
        states, *collected = found if collect else (found,)
        named = {f"{name}_{key}": each for of in collected for key, each in of.items()}
        found = {"encoder_states": states, "encoder_padding_mask": embedded.padding_mask}
        if embedded.attention_positions is not None:
            found["encoder_positions"] = embedded.attention_positions
        return found, named

    def call(
        self,
        inputs,
        cache=None,
        collect: tuple[str, ...] = (),
        part: str = "states",
        training: bool = False,
    ):
        if part == "encode":
            return self.encode(**inputs, training=training)
        if part != "states":
            return {"logits": self.logits}[part](inputs)
        before, source, heard, target = (
            {n.removeprefix(prefix): array for n, array in inputs.items() if n.startswith(prefix)}
            for prefix in ("source_", "encoder_", "sound_", "decoder_")
        )
        states, collected = source.pop("states", None), {}
        attended = {"encoder_states": states, "encoder_padding_mask": source.get("padding_mask")}
        if states is not None:
            refuse_unused(
                "its `encoder_states` are given.", encoder_token_ids=source.get("token_ids")
            )
        elif self._takes("encoder", source):
            attended, collected = self._encoded(source, before, collect, training)
        if self.sound is not None and self._takes("sound", heard):
            states, found = self._heard(heard, collect, training)
            collected = {**collected, **found}
            attended["encoder_states"] = joined_states(attended["encoder_states"], states)
        if self.placeholder_tokens is not None and self.placeholder_tokens.side == "decoder":
            states = attended["encoder_states"]
            result = self._with_placed(states, target, cache, collect, training)
        elif self.config.stem is not None:
            embedded = self.decoder_stem(
                {"attended": attended["encoder_states"]}, training=training
            )
            result = self.decoder(
                embedded.states,
                run=ForwardContext(embedded.states, {}, collect=collect),
                training=training,
                **positions_of(embedded),
                **attended,
            )
        else:
            attended.pop("encoder_positions", None)  # a cache has keys without them
            run = ForwardContext(target["token_ids"], target, cache, collect)
            positions = run.cache_positions
            embedded = self.decoder_stem(target, cache_positions=positions, training=training)
            if embedded.queries is not None:
                attended["queries"] = embedded.queries
            result = self.decoder(
                embedded.states,
                run=run,
                encoder_pack_ids=source.get("pack_ids"),
                training=training,
                **attended,
            )
        if collect:
            result[-1].update(collected)
        return result

    def _merger(self, states, inputs) -> FeatureMerger:
        """Return the merger of states that replace placeholders; None places no states."""
        places = self.placeholder_tokens
        # With `sound` the states of all images and recordings are one row.
        count = None if self.sound is not None else places.count
        if states is not None and count is not None and states.shape[1] not in (None, count):
            raise ValueError(
                f"An input has {states.shape[1]} states of the {places.images}, and {count} are "
                "placed: the images of this model have one size, given by the `stem` in its config."
            )
        if self.projector is None:
            return FeatureMerger(places, inputs, states)
        hard = self._with_hard_tokens if self._some_hard else None
        # What is placed behind a short recording, or between the rows of an image.
        last = self.projector if self.sound_projector is None else self.sound_projector
        further = None if states is None else last.further_state
        return FeatureMerger(places, inputs, states, further, hard)

    @property
    def _some_hard(self) -> bool:
        """Whether some tokens have embeddings of the width of images or sound."""
        projectors = (self.config.projector, self.config.sound_projector)
        return any(each is not None and each.hard_tokens for each in projectors)

    def _with_hard_tokens(self, token_ids, states):
        """Return the states of tokens, with those of the `hard_tokens` of both projectors."""
        for projector in (self.projector, self.sound_projector):
            states = states if projector is None else projector.with_hard_tokens(token_ids, states)
        return states

    def _with_placed(self, states, target, cache, collect, training):
        """Run the decoder on tokens some of which are replaced by encoder states."""
        merger = self._merger(states, target)
        target = {**target, **merger.visibility, **merger.positions}
        run = ForwardContext(target["token_ids"], target, cache, collect)
        stem, further = self.decoder_stem, {}
        embedded, added = merger.embedded(stem, run.cache_positions, training)
        if stem.layer_inputs is not None:
            ids, _ = merger.stem_inputs(None)
            given = {"embedded": embedded.states, "placed": merger.places}
            further["layer_inputs"] = stem.layer_inputs(ids["token_ids"], **given)
        return self.decoder(embedded.states, run=run, added=added, training=training, **further)
