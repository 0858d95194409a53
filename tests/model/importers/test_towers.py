"""Which part of a config is the language model, and which configs are of none."""

import pytest

from kvcalc.errors import SpecError
from kvcalc.model.importers.hf_config import config_document


@pytest.mark.parametrize("model_type", ["reformer", "xlnet", "gemma4_assistant", "gemma4_unified_assistant"])
def test_states_without_a_kind_are_not_taken_for_keys_and_values(model_type):
    with pytest.raises(SpecError, match="there is no cache kind for it"):
        config_document(
            {"model_type": model_type, "num_hidden_layers": 2, "hidden_size": 64}, "c.json", "c", assume=True
        )


def test_an_encoder_is_none_until_it_decodes():
    config = {"model_type": "bert", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}
    with pytest.raises(SpecError, match="is an encoder"):
        config_document(config, "c.json", "c")
    assert config_document(config | {"is_decoder": True}, "c.json", "c")
