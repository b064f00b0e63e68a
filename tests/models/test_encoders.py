"""Vectors and scores of encoders equal those of transformers, whatever is read beside a text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from family_shapes import ENCODERS, shape_of
from model_pairs import CONFIG_CLASSES, write_file

from zse.errors import UnsupportedModelError
from zse.format import ZSEReader
from zse.models.families import read_checkpoint
from zse.models.runner import load_runner, spec_of
from zse.options import load_options

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zse.models.layer_spec import AttentionSpec, LayerSpec
    from zse.models.spec import ModelSpec

TEXTS = [[5, 9, 200], [7], list(range(3, 300)), [11, 12, 13, 14], list(range(40, 70))]
"""One is longer than a tile of queries, and than the rows that a CPU computes at once."""
SECOND_FROM = [2, None, 120, 1, 29]
CLASSES = {"bert": "Bert", "roberta": "XLMRoberta", "modernbert": "ModernBert"}
WAYS: dict[str, dict[str, Any]] = {
    "cpu": {"device": "cpu", "exact_activations": True},
    "torch": {"device": "torch", "kv_dtype": "fp32"},
}
FAMILIES = sorted(ENCODERS)


@dataclass(frozen=True)
class Encoder:
    """A file, and the model of transformers that it is of."""

    path: Path
    model: Any
    spec: ModelSpec

    def vectors(
        self,
        way: str,
        texts: Any = TEXTS,
        pooling: Any = "mean",
        spec: ModelSpec | None = None,
        options: dict[str, Any] | None = None,
    ) -> torch.Tensor:
        options = load_options(**{"threads": 1, **(options or WAYS[way])}, num_blocks=1)
        runner = load_runner(self.path, options, spec=spec)
        try:
            return torch.tensor(runner.vectors(texts, pooling))
        finally:
            runner.close()

    def scores(self, way: str, pairs: Any = SECOND_FROM) -> torch.Tensor:
        runner = load_runner(self.path, load_options(**WAYS[way], num_blocks=1, threads=1))
        try:
            return torch.tensor(runner.vectors(TEXTS, self.spec.head.pooling, pairs))
        finally:
            runner.close()

    def expected(self, pooling: str = "mean") -> torch.Tensor:
        with torch.no_grad():
            states = [self.model(torch.tensor([text])).last_hidden_state[0] for text in TEXTS]
        if pooling == "mean":
            return torch.stack([each.mean(0) for each in states])
        return torch.stack([each[0 if pooling == "first" else -1] for each in states])


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Encoder]:
    made: dict[str, Encoder] = {}

    def encoder(family: str, kind: str = "Model", scheme: str = "fp32", **own: Any) -> Encoder:
        key = repr((family, kind, scheme, sorted(own.items())))
        if key not in made:
            torch.manual_seed(5)
            name = f"{CLASSES[family]}{kind}"
            config = CONFIG_CLASSES[family](**shape_of(family, **own))
            model = getattr(transformers, name)(config).eval()
            with torch.no_grad():
                for parameter in model.parameters():
                    # 16 bits have these numbers exactly, so that fp16 files do, too.
                    noisy = parameter + torch.randn_like(parameter) * 0.05
                    parameter.copy_(noisy.half())
            path = tmp_path_factory.mktemp(family) / "model.zse"
            spec = read_checkpoint(config.to_dict() | {"architectures": [name]})
            write_file(path, spec, dict(model.state_dict()), scheme)
            made[key] = Encoder(path, model, spec)
        return made[key]

    return encoder


def assert_close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert found.shape == wanted.shape
    assert float((found - wanted).abs().max() / wanted.abs().max()) < 1e-4


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_match_transformers(family: str, way: str, make: Callable[..., Encoder]) -> None:
    encoder = make(family)
    for pooling in ("mean", "first", "last"):
        assert_close(encoder.vectors(way, pooling=pooling), encoder.expected(pooling))


@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_of_16_bit_files_match_transformers(
    family: str, make: Callable[..., Encoder]
) -> None:
    encoder = make(family, scheme="fp16")
    assert_close(encoder.vectors("cpu"), encoder.expected())


@pytest.mark.parametrize(("scheme", "least"), [("int8", 0.9995), ("int4", 0.97)])
def test_vectors_of_quantized_files_are_near(
    scheme: str, least: float, make: Callable[..., Encoder]
) -> None:
    encoder = make("bert", scheme=scheme)
    found = encoder.vectors("cpu", options={"device": "cpu"})
    assert float(torch.cosine_similarity(found, encoder.expected()).min()) > least


@pytest.mark.parametrize("scheme", ["fp32", "int8"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_has_the_same_vector_alone_and_among_others(
    family: str, scheme: str, make: Callable[..., Encoder]
) -> None:
    encoder, options = make(family, scheme=scheme), {"device": "cpu"}
    together = encoder.vectors("cpu", options={**options, "threads": 2})
    for text, vector in zip(TEXTS, together, strict=True):
        alone = encoder.vectors("cpu", [text], options=options)
        torch.testing.assert_close(alone[0], vector, rtol=1e-5, atol=1e-5)


def test_texts_keep_nothing(make: Callable[..., Encoder]) -> None:
    runner = load_runner(make("bert").path, load_options(device="cpu", threads=1))
    assert (runner.memory_bytes()["kv_cache"], runner.num_blocks) == (0, 1)
    runner.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_runner_that_has_rested_makes_the_same_vectors(
    way: str, make: Callable[..., Encoder]
) -> None:
    options = load_options(**WAYS[way], threads=1, num_blocks=1)
    runner = load_runner(make("bert").path, options)
    runner.rest(())
    vectors = [list(vector) for vector in runner.vectors(TEXTS, "mean")]
    runner.rest(())
    assert [list(vector) for vector in runner.vectors(TEXTS, "mean")] == vectors
    runner.close()


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("family", FAMILIES)
def test_scores_of_pairs_match_transformers(
    family: str, way: str, make: Callable[..., Encoder]
) -> None:
    encoder = make(family, "ForSequenceClassification", num_labels=1)
    assert_close(encoder.scores(way), expected_scores(encoder, SECOND_FROM))


def expected_scores(encoder: Encoder, pairs: list[int | None]) -> torch.Tensor:
    found = []
    for text, second in zip(TEXTS, pairs, strict=True):
        inputs = {"input_ids": torch.tensor([text])}
        if encoder.spec.family == "bert":
            types = torch.zeros(1, len(text), dtype=torch.int64)
            types[0, len(text) if second is None else second :] = 1
            inputs["token_type_ids"] = types
        with torch.no_grad():
            found.append(encoder.model(**inputs).logits[0])
    return torch.stack(found)


def test_the_second_text_of_a_pair_has_its_own_type(make: Callable[..., Encoder]) -> None:
    encoder = make("bert", "ForSequenceClassification", num_labels=1)
    assert not torch.allclose(encoder.scores("torch"), encoder.scores("torch", ()), rtol=1e-3)


def test_a_classifier_of_means_matches_transformers(make: Callable[..., Encoder]) -> None:
    own = {"num_labels": 1, "classifier_pooling": "mean", "classifier_bias": True}
    encoder = make("modernbert", "ForSequenceClassification", **own)
    for way in WAYS:
        assert_close(encoder.scores(way), expected_scores(encoder, [None] * len(TEXTS)))


def test_biases_of_a_modernbert_match_transformers(make: Callable[..., Encoder]) -> None:
    own = {"attention_bias": True, "mlp_bias": True, "norm_bias": True}
    encoder = make("modernbert", **own)
    for way in WAYS:
        assert_close(encoder.vectors(way), encoder.expected())


def layers(change: Callable[[LayerSpec], LayerSpec]) -> Callable[[ModelSpec], ModelSpec]:
    return lambda spec: replace(spec, layers=tuple(map(change, spec.layers)))


def mixers(change: Callable[[AttentionSpec], AttentionSpec]) -> Callable[[ModelSpec], ModelSpec]:
    return layers(lambda one: replace(one, mixer=change(one.mixer)))  # type: ignore[arg-type]


def embedding(**changes: Any) -> Callable[[ModelSpec], ModelSpec]:
    return lambda spec: replace(spec, embedding=replace(spec.embedding, **changes))


def norm_first_again(spec: ModelSpec) -> ModelSpec:
    first, second, *others = spec.layers
    return replace(spec, layers=(replace(first, mixer_norm=second.mixer_norm), second, *others))


def one_rotation(spec: ModelSpec) -> ModelSpec:
    rope = spec.attention.rope
    return mixers(lambda mixer: replace(mixer, rope=rope))(spec)


PECULIARITIES: dict[tuple[str, str], Callable[[ModelSpec], ModelSpec]] = {
    ("bert", "learned positions"): embedding(positions=None),
    ("bert", "a type of tokens"): embedding(token_types=None),
    ("bert", "a norm of the embedding"): embedding(norm=None),
    ("bert", "norms of the stream behind attention"): layers(
        lambda one: replace(one, mixer_stream_norm=None)
    ),
    ("bert", "norms of the stream behind MLPs"): layers(
        lambda one: replace(one, mlp_stream_norm=None)
    ),
    ("roberta", "positions behind that of padding"): embedding(first_position=0),
    ("modernbert", "a window to both sides"): mixers(lambda one: replace(one, window=None)),
    ("modernbert", "half of the window on each side"): mixers(
        lambda one: replace(one, window=one.window and one.window - 1)
    ),
    ("modernbert", "a rotation of its own where there is a window"): one_rotation,
    ("modernbert", "no norm before the first attention"): norm_first_again,
    ("modernbert", "a norm of the embedding"): embedding(norm=None),
    ("modernbert", "a norm before the head"): lambda spec: replace(
        spec, head=replace(spec.head, norm=None)
    ),
}


@pytest.mark.parametrize(("family", "name"), PECULIARITIES)
def test_without_it_the_vectors_are_others(
    family: str, name: str, make: Callable[..., Encoder]
) -> None:
    encoder = make(family)
    with ZSEReader(encoder.path) as reader:
        spec = PECULIARITIES[family, name](spec_of(reader))
    wanted = encoder.expected()
    difference = (encoder.vectors("torch", spec=spec) - wanted).abs().max() / wanted.abs().max()
    assert float(difference) > 1e-3


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("bert", {"is_decoder": True}, "is_decoder"),
        ("bert", {"num_attention_heads": 3}, "3 heads do not divide"),
        ("roberta", {"pad_token_id": 400}, "positions would begin at 401 of 322"),
        ("modernbert", {"hidden_activation": "relu"}, "hidden_activation"),
        ("modernbert", {"local_attention": -4}, "sliding_window is -1"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    family: str, changes: dict[str, Any], message: str
) -> None:
    values = shape_of(family, architectures=[f"{CLASSES[family]}Model"], **changes)
    with pytest.raises(UnsupportedModelError, match=message):
        read_checkpoint(values)


@pytest.mark.parametrize("labels", [{}, {"id2label": {"0": "no", "1": "yes", "2": "maybe"}}])
def test_a_classifier_of_several_classes_is_no_reranker(labels: dict[str, Any]) -> None:
    name = "BertForSequenceClassification"
    with pytest.raises(UnsupportedModelError, match="classes of texts apart; expected one score"):
        read_checkpoint(shape_of("bert", architectures=[name], **labels))
