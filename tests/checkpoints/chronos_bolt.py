"""Chronos-Bolt in PyTorch, of the stacks of T5 that the Transformers library has.

The published class is in the package chronos-forecasting 2.3 (`chronos/chronos_bolt.py`), which
needs others that the tests do not. This is its forward pass and its `predict`, with its names: the
weights and the config are written and read by the same `PreTrainedModel`.
"""

import copy
from typing import ClassVar

import torch
from torch import nn
from transformers.models.t5.modeling_t5 import ACT2FN, T5PreTrainedModel, T5Stack


class ResidualBlock(nn.Module):
    def __init__(self, inputs, hidden, outputs, activation):
        super().__init__()
        self.hidden_layer = nn.Linear(inputs, hidden)
        self.output_layer = nn.Linear(hidden, outputs)
        self.residual_layer = nn.Linear(inputs, outputs)
        self.act = ACT2FN[activation]

    def forward(self, x):
        return self.output_layer(self.act(self.hidden_layer(x))) + self.residual_layer(x)


class ChronosBoltModelForForecasting(T5PreTrainedModel):
    _tied_weights_keys: ClassVar = {
        f"{side}.embed_tokens.weight": "shared.weight" for side in ("encoder", "decoder")
    }

    def __init__(self, config):
        super().__init__(config)
        self.options = options = config.chronos_config
        config.vocab_size = 1 + options["use_reg_token"]
        self.shared = nn.Embedding(config.vocab_size, config.d_model)
        parts = (config.d_ff, config.dense_act_fn)
        self.input_patch_embedding = ResidualBlock(
            2 * options["input_patch_size"], parts[0], config.d_model, parts[1]
        )
        encoder, decoder = copy.deepcopy(config), copy.deepcopy(config)
        encoder.is_decoder, encoder.use_cache = False, False
        decoder.is_decoder, decoder.num_layers = True, config.num_decoder_layers
        self.encoder, self.decoder = T5Stack(encoder), T5Stack(decoder)
        numbers = len(options["quantiles"]) * options["prediction_length"]
        self.output_patch_embedding = ResidualBlock(config.d_model, parts[0], numbers, parts[1])
        self.post_init()

    def encode(self, context):
        """States of the encoder, which of them are masked, and the scale of each row."""
        size, most = (self.options[name] for name in ("input_patch_size", "context_length"))
        context = context[..., -most:]
        mask = (~torch.isnan(context)).float()
        loc = torch.nan_to_num(torch.nanmean(context, dim=-1, keepdim=True), nan=0.0)
        square = (context - loc).square().nanmean(dim=-1, keepdim=True)
        scale = torch.nan_to_num(square.sqrt(), nan=1.0)
        scale = torch.where(scale == 0, 1e-5, scale)
        missing = -context.shape[-1] % size
        context = nn.functional.pad((context - loc) / scale, (missing, 0))
        mask = nn.functional.pad(mask, (missing, 0)).unfold(-1, size, size)
        context = torch.where(mask > 0, context.unfold(-1, size, size), 0.0)
        states = self.input_patch_embedding(torch.cat([context, mask], dim=-1))
        seen = (mask.sum(dim=-1) > 0).float()
        if self.options["use_reg_token"]:
            states = torch.cat([states, self.shared.weight[1].expand(len(states), 1, -1)], dim=1)
            seen = nn.functional.pad(seen, (0, 1), value=1.0)
        states = self.encoder(inputs_embeds=states, attention_mask=seen).last_hidden_state
        return states, seen, (loc, scale)

    def decode(self, states, seen):
        """The state of the decoder's one token, `(rows, 1, d_model)`."""
        start = torch.zeros((len(states), 1), dtype=torch.long)
        outputs = self.decoder(
            input_ids=None,
            inputs_embeds=self.shared(start),
            encoder_hidden_states=states,
            encoder_attention_mask=seen,
        )
        return outputs.last_hidden_state

    def forward(self, context):
        """Forecasts `(rows, quantiles, prediction_length)` of `(rows, time)`, NaN for missing."""
        states, seen, (loc, scale) = self.encode(context)
        found = self.output_patch_embedding(self.decode(states, seen))
        found = found.view(len(context), len(self.options["quantiles"]), -1)
        return found * scale[..., None] + loc[..., None]

    @torch.no_grad()
    def predict(self, context, horizon):
        """As `ChronosBoltPipeline.predict`: `(rows, quantiles, horizon)`."""
        made = [self(context)]
        levels, rows = torch.tensor(self.options["quantiles"]), len(context)
        context = context[:, None].repeat(1, len(levels), 1)
        while sum(part.shape[-1] for part in made) < horizon:
            context = torch.cat([context, made[-1]], dim=-1)[..., -self.options["context_length"] :]
            found = self(context.reshape(rows * len(levels), -1))
            found = found.reshape(rows, len(levels) ** 2, -1)
            made.append(torch.quantile(found, levels, dim=1).transpose(0, 1))
        return torch.cat(made, dim=-1)[..., :horizon]
