"""Models of transformers, and models without memory, get the mapped tensors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from mappings import is_mapped

from stridemap.torch import load_file, load_model, save_model

accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed (pip install accelerate)")
transformers = pytest.importorskip("transformers", reason="transformers is not installed (pip install transformers)")

GUIDE = Path(__file__).parents[2] / "docs/python.md"


def gpt2() -> Any:
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=16, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel, config


def bert() -> Any:
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=16,
    )  # fmt: skip
    return transformers.BertForMaskedLM, config


@pytest.fixture(params=[gpt2, bert], ids=["GPT-2", "BERT"])
def made(request: pytest.FixtureRequest) -> Any:
    return request.param()


def outputs(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(torch.arange(10)[None]).logits


def check(model: Any, original: Any) -> None:
    """Check that a model has the elements of another, from the store."""
    assert torch.equal(outputs(model), outputs(original))
    assert {tensor.device.type for tensor in [*model.parameters(), *model.buffers()]} == {"cpu"}
    large = [tensor for tensor in model.parameters() if tensor.ndim > 1]
    assert large and all(map(is_mapped, large)), "the matrices are not copied"
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight


def test_pretrained_model_is_made_of_a_state_dict(made: Any, path: Path) -> None:
    kind, config = made
    save_model(original := kind(config), path)
    check(kind.from_pretrained(None, config=config, state_dict=load_file(path)), original)


def test_model_with_empty_weights_is_loaded_without_a_copy(made: Any, path: Path) -> None:
    kind, config = made
    save_model(original := kind(config), path)
    with accelerate.init_empty_weights():
        model = kind(config)
    model.tie_weights()
    assert load_model(model, path) == ([], [])
    check(model, original)


def test_gradients_are_those_of_the_original(made: Any, path: Path) -> None:
    kind, config = made
    save_model(original := kind(config), path)
    model = kind.from_pretrained(None, config=config, state_dict=load_file(path))
    for other in (original, model):
        other.eval()(torch.arange(10)[None], labels=torch.arange(10)[None]).loss.backward()
    gradients = dict(original.named_parameters())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, gradients[name].grad), name


def test_recipe_of_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [recipe] = re.findall(r"^```python transformers\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    exec(compile(recipe, str(GUIDE), "exec"), {"__name__": "__main__"})
