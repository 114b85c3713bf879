"""The offline API on the bundled model."""

from __future__ import annotations

import pytest

from engine.errors import ConfigError, InvalidRequest
from engine.llm import LLM, SamplingParams
from tests import models


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(models.smollm2(), progress=False, max_model_len=256, kernel_precision="exact")


def test_generate_answers_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = ["The capital of France is", llm.tokenizer.encode("def add(a, b):\n    return")]
    greedy = SamplingParams(temperature=0, max_tokens=10)
    france, code = llm.generate(prompts, [greedy, SamplingParams(temperature=0, max_tokens=4)])
    assert france.outputs[0].text == " Paris.\n\nThe answer is: 2" and france.usage.n_output == 10
    assert code.outputs[0].text == " a + b\n"
    assert llm.generate("The capital of France is", greedy)[0].outputs[0].text == france.outputs[0].text


def test_chat_renders_the_template_and_takes_one_conversation_or_several(llm: LLM) -> None:
    talk = [{"role": "user", "content": "Say hello."}]
    greedy = SamplingParams(temperature=0, max_tokens=6)
    (one,) = llm.chat(talk, greedy)
    rendered = llm.tokenizer.encode(llm.template.render(talk), add_special=False)
    assert one.prompt_token_ids == rendered
    assert [output.outputs[0].text for output in llm.chat([talk, talk], greedy)] == [one.outputs[0].text] * 2


@pytest.mark.models
def test_chat_with_a_base_model_stops_before_it_writes_the_persons_next_line() -> None:
    gemma = LLM(models.gemma(), progress=False, max_model_len=128, quantization="none")
    (answer,) = gemma.chat([{"role": "user", "content": "Hello"}], SamplingParams(temperature=0, max_tokens=40))
    assert "User:" not in answer.outputs[0].text and answer.outputs[0].stop_reason == "\n\nUser:"


def test_a_progress_bar_is_shown_when_asked(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm._progress = True
    try:
        llm.generate(["a", "b"], SamplingParams(max_tokens=1))
    finally:
        llm._progress = False
    assert "2/2" in capsys.readouterr().err


def test_a_wrong_request_is_refused_before_anything_runs(llm: LLM) -> None:
    before = llm.core.counters.n_requests
    with pytest.raises(InvalidRequest, match="top_p"):
        llm.generate(["a", "b"], [SamplingParams(), SamplingParams(top_p=2)])
    assert llm.core.counters.n_requests == before


@pytest.mark.parametrize(
    ("knob", "value"),
    [("max_num_seqs", 0), ("block_size", 0), ("gpu_memory_utilization", 7), ("dtype", "int8"), ("max_modle_len", 100)],
)
def test_a_wrong_knob_is_refused_by_name(knob: str, value: object) -> None:
    with pytest.raises(ConfigError, match=knob):
        LLM(models.smollm2(), progress=False, **{knob: value})


def test_a_stop_given_as_one_string_is_one_stop_string() -> None:
    assert SamplingParams(stop="END").stop == ("END",)
