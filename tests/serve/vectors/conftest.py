"""An embedder and a reranker of random weights behind the server's routes."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from encoder_folders import tell_pooling, write_encoder

from zse.engine.async_engine import AsyncEngine
from zse.engine.loading import load_model
from zse.options import load_options
from zse.quantize.convert import convert_model
from zse.serve.state import LoadedModel
from zse.settings import load_settings

KINDS = {"vectors": ("Model", {}), "scores": ("ForSequenceClassification", {"num_labels": 1})}


@pytest.fixture(scope="package")
def files(tmp_path_factory):
    """An embedder and a reranker as .zse files, by what they make."""
    found = {}
    for task, (kind, own) in KINDS.items():
        folder = tmp_path_factory.mktemp(task)
        write_encoder(folder, "bert", kind, **own)
        tell_pooling(folder, {"pooling_mode_cls_token": True})
        found[task] = tmp_path_factory.mktemp("converted") / f"{task}.zse"
        convert_model(folder, found[task], "fp16")
    return found


@pytest.fixture(scope="package")
def models(files):
    options = load_options(device="cpu", threads=1, max_context=16)
    with ExitStack() as stack:
        found = {}
        for task, path in files.items():
            loaded = load_model(path, options, load_settings())
            engine = AsyncEngine(loaded.core, loaded.tokenizer)
            stack.callback(loaded.reader.close)
            stack.callback(engine.close)
            found[task] = LoadedModel(
                name=task,
                engine=engine,
                tokenizer=loaded.tokenizer,
                template=None,
                max_context=loaded.core.capacity_tokens,
                vocab_size=loaded.core.runner.vocab_size,
                fingerprint="zse-test",
                created=0,
                vector_size=loaded.core.runner.spec.hidden_size,
                spec=loaded.core.runner.spec,
                resources=(loaded.reader,),
            )
        yield found


@pytest.fixture
def embedder(make_caller, models):
    return make_caller(models["vectors"])


@pytest.fixture
def reranker(make_caller, models):
    return make_caller(models["scores"])
