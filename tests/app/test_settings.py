"""Settings: one declaration, four sources, and errors that name the setting and the nearest name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import settings as module
from app.commands.settings import markdown_table
from app.options import did_you_mean, format_bytes, parse_bytes
from app.settings import BY_NAME, OPTIONS, Settings, is_loopback, load, make
from engine.config import EngineConfig
from engine.errors import ConfigError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """serving_config.toml of an otherwise empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "serving_config.toml"


def load_clean(cli: dict | None = None, environ: dict[str, str] | None = None, config: Path | None = None) -> Settings:
    return load(cli, config=config, environ=environ or {})


def test_defaults_are_those_of_the_structs(toml: Path) -> None:
    settings = load_clean()
    assert settings.engine == EngineConfig()
    assert (settings.serving.host, settings.serving.port, settings.config_path) == ("127.0.0.1", 8000, None)


def test_each_source_overrides_the_one_below(toml: Path) -> None:
    toml.write_text("[serving]\nport = 1000\nmax_num_seqs = 8\nblock_size = 32\n")
    settings = load_clean({"port": 3000}, {"PAGEWELL_PORT": "2000", "PAGEWELL_MAX_NUM_SEQS": "9"})
    assert (settings.serving.port, settings.engine.max_num_seqs, settings.engine.block_size) == (3000, 9, 32)
    assert settings.config_path == toml


def test_sections_of_the_file_reach_their_structs(toml: Path) -> None:
    toml.write_text(
        '[orchestrator]\nenv = "development"\nidle_timeout = 90\npermission_mode = "readonly"\n'
        '[serving]\nkv-cache-memory = "512MiB"\nallowed_hosts = ["box.lan"]\nenable_prefix_caching = false\n'
        "[distributed]\ntensor_parallel_size = 1\n"
    )
    settings = load_clean()
    assert settings.orchestrator.idle_timeout == 90.0
    assert settings.orchestrator.permission_mode == "readonly"
    assert settings.serving.allowed_hosts == ("box.lan",)
    assert settings.engine.kv_cache_memory == 512 << 20
    assert not settings.engine.enable_prefix_caching


def test_development_turns_on_checks_and_debug_messages_unless_told_otherwise(toml: Path) -> None:
    settings = make({"env": "development"})
    assert settings.engine.debug_checks and settings.serving.log_level == "debug"
    assert not make({"env": "development", "debug_checks": False}).engine.debug_checks


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[serving]\nmax_modle_len = 5\n", "max_model_len"),
        ("[servin]\nport = 5\n", "serving"),
        ("port = 5\n", r"belongs under \[serving\]"),
        ("[serving]\ntensor_parallel_size = 1\n", r"belongs under \[distributed\]"),
        ("[serving]\nport = 70000\n", "port: 70000 cannot be used: expected int <= 65535"),
        ('[serving]\nport = "a"\n', "port"),
        ("[serving]\nport = true\n", "port"),
        ('[serving]\ndtype = "flaot32"\n', "float32"),
        ('[serving]\nkv_cache_memory = "5 parsecs"\n', "512MiB"),
        ("[serving]\nenable_prefix_caching = 1\n", "enable_prefix_caching"),
        ("[distributed]\ntensor_parallel_size = 2\n", "tensor_parallel_size is 2"),
        ("[serving\n", "not valid TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_the_name_that_was_meant(toml: Path, text: str, wanted: str) -> None:
    toml.write_text(text)
    with pytest.raises(ConfigError, match=wanted):
        load_clean()


def test_a_block_size_is_a_number_or_auto_wherever_it_is_given(toml: Path) -> None:
    assert make().engine.block_size == "auto" and BY_NAME["block_size"].metavar == "INT|auto"
    for text, value in (("64", 64), ("auto", "auto")):
        assert load_clean(environ={"PAGEWELL_BLOCK_SIZE": text}).engine.block_size == value
        toml.write_text(f'[serving]\nblock_size = "{text}"\n')
        assert load_clean().engine.block_size == value
    for wrong, why in (("fast", "neither a number nor auto"), ("0", "expected int >= 1"), ("24", "not a power of two")):
        with pytest.raises(ConfigError, match=why):
            load_clean(environ={"PAGEWELL_BLOCK_SIZE": wrong})


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no configuration file .*nowhere\.toml"):
        load_clean(config=tmp_path / "nowhere.toml")


def test_unknown_variables_are_refused_but_places_are_not(toml: Path) -> None:
    with pytest.raises(ConfigError, match="PAGEWELL_MAX_NUM_SEQ,.*PAGEWELL_MAX_NUM_SEQS"):
        load_clean(environ={"PAGEWELL_MAX_NUM_SEQ": "4"})
    load_clean(
        environ={"PAGEWELL_HOME": "/somewhere", "PAGEWELL_TEST_MODELS": "/else", "PAGEWELL_ISA": "avx2", "PAGEWELL_NATIVE": "off"}
    )


def test_environment_text_becomes_typed_values(toml: Path) -> None:
    settings = load_clean(
        environ={
            "PAGEWELL_ENABLE_CHUNKED_PREFILL": "off",
            "PAGEWELL_KV_CACHE_MEMORY": "1.5GiB",
            "PAGEWELL_CORS_ORIGINS": "https://a.example, https://b.example",
            "PAGEWELL_MAX_MODEL_LEN": "none",
            "PAGEWELL_GPU_MEMORY_UTILIZATION": "0.3",
        }
    )
    assert not settings.engine.enable_chunked_prefill
    assert settings.engine.kv_cache_memory == 3 << 29
    assert settings.serving.cors_origins == ("https://a.example", "https://b.example")
    assert settings.engine.max_model_len is None
    assert settings.engine.gpu_memory_utilization == 0.3


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "box.lan"])
def test_an_open_address_needs_a_key(host: str) -> None:
    with pytest.raises(ConfigError, match="no API key"):
        make({"host": host})
    assert make({"host": host, "api_key": "k"}).serving.host == host


@pytest.mark.parametrize(
    "origin",
    [
        "example.com",
        "localhost:3000",
        "null",
        "",
        "https://*.example.com",
        "https://a.example/app",
        "://x",
        "http://a b",
        "http://[::1",
    ],
)
def test_an_origin_that_is_none_is_refused_with_the_right_form(origin: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(repr(origin))) as refusal:
        make({"cors_origins": ("http://localhost", origin)})
    assert "https://app.example.com" in refusal.value.hint


def test_origins_of_every_right_form_are_taken() -> None:
    make(
        {
            "cors_origins": (
                "*",
                "app://",
                "https://a.example",
                "http://localhost:3000/",
                "HTTP://[::1]:80",
                "capacitor://localhost",
            )
        }
    )


@pytest.mark.parametrize(
    "name", ["llm.example:443", "https://llm.example", "*.example", "llm.example.", "a/b", "", "[::1]", "ö.example"]
)
def test_a_host_that_could_never_match_is_refused_with_the_right_form(name: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(repr(name))) as refusal:
        make({"allowed_hosts": ("box.lan", name)})
    assert "llm.example.com" in refusal.value.hint
    make({"allowed_hosts": ("box.lan", "BOX", "my_box-2", "192.168.1.5", "fe80::1")})


@pytest.mark.parametrize("key", ["schlüssel", "tab\tkey", "line\nkey", " key", "key "])
def test_a_key_that_no_header_can_carry_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="api_key"):
        make({"api_key": key})
    assert make({"api_key": "a key: ~!$%"}).serving.api_key == "a key: ~!$%"


def test_loopback_addresses() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "localhost.evil.example", "10.0.0.1", "")))


def test_permission_by_key_needs_a_key() -> None:
    with pytest.raises(ConfigError, match="permission_mode key needs --api-key"):
        make({"permission_mode": "key"})


def test_urls_that_a_client_on_this_machine_can_use() -> None:
    assert make({"port": 81}).url == "http://127.0.0.1:81"
    assert make({"host": "::1"}).url == "http://[::1]:8000"
    assert make({"host": "0.0.0.0", "api_key": "k"}).url == "http://127.0.0.1:8000"


def test_names_are_declared_once_and_every_default_passes_its_own_rule() -> None:
    names = [option.name for option in OPTIONS]
    assert len(names) == len(set(names))
    for option in OPTIONS:
        assert option.description.endswith("."), option.name
        assert option.parse(option.show(option.default)) == option.default


@given(st.integers(0, 1 << 50))
def test_sizes_are_read_back_nearly_as_written(n_bytes: int) -> None:
    assert parse_bytes(str(n_bytes)) == n_bytes
    assert parse_bytes(format_bytes(n_bytes)) == pytest.approx(n_bytes, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "n_bytes"), [("512MiB", 512 << 20), ("2 GB", 2 << 30), ("1.5g", 3 << 29), ("7", 7), ("4kib", 4096)]
)
def test_units_of_sizes(text: str, n_bytes: int) -> None:
    assert parse_bytes(text) == n_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e9", "5 MiBs", "1,5GiB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_bytes(text)


def test_the_nearest_name() -> None:
    assert did_you_mean("max-seqs", ["max-num-seqs", "port"]) == " Did you mean 'max-num-seqs'?"
    assert did_you_mean("smoll", ["smollm2-135m-instruct"]) == " Did you mean 'smollm2-135m-instruct'?"
    assert did_you_mean("zebra", ["port", "host"]) == ""


def test_the_readme_has_every_setting() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    table = re.search(r"<!-- settings -->\n(.*?)\n<!-- /settings -->", text, re.DOTALL)
    assert table is not None
    assert table[1] == markdown_table(), "run `pagewell settings --markdown` and put it into README.md"


def test_settings_need_no_torch() -> None:
    code = f"import sys, {module.__name__}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_one_model_has_settings_of_its_own_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "serving_config.toml"
    file.write_text('[serving]\nmax_model_len = 1024\n[models."Qwen2.5-7B"]\nmax_model_len = 512\nkv-cache-dtype = "int8"\n')
    made = load(config=file, environ={})
    assert (made.engine.max_model_len, made.engine_for("qwen2.5-7b").max_model_len) == (1024, 512)
    assert made.engine_for("other").max_model_len == 1024
    won = load(config=file, environ={"PAGEWELL_MAX_MODEL_LEN": "64"}).engine_for("qwen2.5-7b")
    assert (won.max_model_len, won.kv_cache_dtype) == (64, "int8"), "the environment wins over every table"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[models."m"]\nthreads = 2\n', "cannot have 'threads'"),
        ('[models."m"]\nmax_model_length = 2\n', "Did you mean 'max_model_len'"),
        ('[models."m"]\nmax_model_len = "long"\n', "max_model_len"),
        ('[models."m"]\nmax_num_batched_tokens = 16\n', "max_num_batched_tokens"),
        ("[models.qwen2.5-7b]\nmax_model_len = 64\n", r'needs quotes: \[models."qwen2.5-7b"\]'),
        ("models = 3\n", "holds a table for each model"),
        ("[models]\nm = 3\n", "holds a table for each model"),
        ('[orchestrator]\nmodel_aliases = ["coder"]\n', "NAME=MODEL"),
        ('[orchestrator]\nmodel_aliases = ["a=b", "A=c"]\n', "twice"),
        ('[orchestrator]\nmodel_aliases = ["a b=c"]\n', "NAME=MODEL"),
    ],
)
def test_what_is_wrong_about_single_models_is_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "serving_config.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as wrong:
        load(config=file, environ={})
    assert re.search(said, str(wrong.value)), wrong.value
