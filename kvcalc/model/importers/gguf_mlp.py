"""The feed-forward part of each layer of a GGUF model, by its tensors where there are any, by its keys otherwise."""

from typing import Any

from kvcalc.model.importers.gguf_arch import UNGATED
from kvcalc.model.importers.gguf_keys import Keys


class MlpReader:
    """The feed-forward parts of a model of `layers` layers."""

    def __init__(self, keys: Keys, layers: int) -> None:
        self.keys = keys
        self.widths = keys.per_layer("feed_forward_length", layers) or [0] * layers
        self.expert_widths = keys.per_layer("expert_feed_forward_length", layers) or self.widths
        self.experts = keys.count("expert_count") or 0
        self.dense_first = keys.count("leading_dense_block_count") or 0
        self.step = keys.count("interleave_moe_layer_step") or keys.count("moe_every_n_layers") or 1
        self.gated = self._is_gated()

    def mlp(self, layer: int) -> dict[str, Any] | None:
        """The part of one layer; None where no key gives its width."""
        if self.experts and self._is_routed(layer) and self.expert_widths[layer]:
            return self._moe(layer)
        width = self.widths[layer]
        return {"kind": "dense", "intermediate_size": width, **self.gated} if width else None

    def _is_routed(self, layer: int) -> bool:
        if self.keys.by_layer.get(layer):
            return self.keys.has(layer, "ffn_gate_inp")
        return layer >= self.dense_first and (layer + 1) % self.step == 0

    def _moe(self, layer: int) -> dict[str, Any]:
        keys, width = self.keys, self.expert_widths[layer]
        active, shared = keys.count("expert_used_count"), keys.count("expert_shared_count") or 0
        beside = keys.count("expert_shared_feed_forward_length") or 0
        found = {"kind": "moe", "experts": self.experts, "intermediate_size": width, **self.gated}
        found |= {"active": active} if active else {}
        if not beside:
            return found | ({"shared": shared} if shared else {})
        # The key is the width of all shared experts together.
        shared = max(1, shared)
        return found | {"shared": shared, "shared_intermediate_size": max(1, beside // shared)}

    def _is_gated(self) -> dict[str, Any]:
        layers = self.keys.by_layer
        if any(self.keys.has(layer, "ffn_up") for layer in layers):
            gated = any(self.keys.has(layer, "ffn_gate", "ffn_gate_up") for layer in layers)
            return {} if gated or self._has_fused_up() else {"gated": False}
        return {"gated": False} if self.keys.arch in UNGATED else {}

    def _has_fused_up(self) -> bool:
        """Whether ffn_up holds the gate too, twice as wide as the part is: phi3, glm4, chatglm."""
        widths = {2 * width for width in self.widths if width}
        ups = (tensor for tensor in self.keys.header.tensors if tensor.name.endswith("ffn_up.weight"))
        return any(tensor.shape[1:2] and tensor.shape[1] in widths for tensor in ups)
