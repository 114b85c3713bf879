"""The command line as a person meets it: separate processes, what they print, how they exit."""

from __future__ import annotations

import ast
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from app.cli import COMMANDS, cli
from app.commands.bench import bench
from app.commands.params import SettingType
from app.commands.serve import bind, welcome
from app.settings import OPTIONS, make
from engine.errors import ConfigError

ROOT = Path(__file__).parents[2]


def pagewell(*args: str, cwd: Path, stdin: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "app.cli", *args],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_help_imports_nothing_slow(tmp_path: Path) -> None:
    slow = {"torch", "transformers", "litestar", "uvicorn", "textual", "huggingface_hub", "sqlalchemy", "httpx"}
    code = (
        "import sys; from app.cli import cli; cli.main(['--help'], standalone_mode=False); "
        f"found = {slow} & set(sys.modules); sys.exit(f'imported {{found}}' if found else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    for command in COMMANDS:
        assert f"  {command.name} " in result.stdout


@pytest.mark.parametrize("page", ["README.md", "docs/performance/README.md"])
def test_every_measurement_is_in_the_table_of_commands(page: str) -> None:
    rows = [line for line in (ROOT / page).read_text("utf-8").splitlines() if line.startswith("| `pagewell ")]
    named = {name for row in rows for name in re.findall(r"`(?:pagewell )?bench (\w+)", row)}
    assert named == {*bench.commands}


def test_every_command_is_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert {command.name for command in COMMANDS} <= {*re.findall(r"^\| `pagewell (\w+)", text, re.M)}


def test_only_the_command_line_imports_commands() -> None:
    for path in sorted((ROOT / "app").rglob("*.py")):
        if path != ROOT / "app" / "cli.py" and path.parts[len(ROOT.parts) + 1] != "commands":
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                assert not [name for name in names if name.startswith("app.commands")], path


def test_every_setting_is_an_option_of_serve_with_its_description() -> None:
    text = " ".join(CliRunner().invoke(cli, ["serve", "--help"], terminal_width=200).output.split())
    for option in OPTIONS:
        assert option.flag in text
        assert " ".join(option.description.split()) in text


def test_options_reach_the_command_typed() -> None:
    serve = next(command for command in COMMANDS if command.name == "serve")
    types = {param.name: param.type for param in serve.params if isinstance(param.type, SettingType)}
    assert types["kv_cache_memory"].convert("2GiB", None, None) == 2 << 30
    context = serve.make_context("serve", ["--no-enable-prefix-caching", "--max-model-len", "64", "a.gguf"])
    assert context.params["enable_prefix_caching"] is False
    assert context.params["max_model_len"] == 64
    assert context.params["model_name"] == "a.gguf"
    assert context.params["port"] is None


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["serv"], "Did you mean 'serve'?"),
        (["serve", "--max-model-lne", "5"], "--max-model-len"),
        (["serve", "--port", "99999"], "expected int <= 65535"),
        (["serve", "--dtype", "flot32"], "Did you mean 'float32'?"),
        (["serve", "--kv-cache-memory", "5XB"], "512MiB"),
        (["serve", "smollm2-135m-instruk"], "Did you mean 'smollm2-135m-instruct'?"),
        (["serve", "nowhere.gguf"], "There is no file or folder nowhere.gguf."),
        (["serve", "a", "--model", "b"], "Two models are named"),
        (["serve", "--host", "0.0.0.0"], "no API key"),
        (["serve", "--tensor-parallel-size", "2"], "tensor_parallel_size is 2"),
        (["serve", "--config", "none.toml"], "no configuration file none.toml"),
        (["chat", "--url", "http://127.0.0.1:9", "-m", "hi"], "No server answers"),
        (["bench", "serve", "--url", "http://127.0.0.1:9"], "No server with a model answers"),
        (["models", "rm", "unheard-of"], "There is no model 'unheard-of'."),
        (["top", "--json"], "--json goes with --once"),
        (["top"], "The dashboard needs a terminal; without one, --once prints"),
    ],
)
def test_mistakes_exit_with_2_and_say_what_was_meant(tmp_path: Path, args: list[str], said: str) -> None:
    result = pagewell(*args, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_a_port_in_use_is_said_before_anything_is_loaded(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = pagewell("serve", "--port", str(port), cwd=tmp_path)
    assert result.returncode == 2
    assert f"Port {port} on 127.0.0.1 is in use" in result.stderr
    assert f"--port {port + 1}" in result.stderr


def test_binding_an_address_that_is_not_ours() -> None:
    with pytest.raises(ConfigError, match=r"203\.0\.113\.1"):
        bind("203.0.113.1", 0)
    with bind("localhost", 0) as sock:
        assert sock.getsockname()[1] > 0


def test_the_welcome_names_the_next_three_things() -> None:
    text = welcome(make({"port": 8123, "api_key": "secret"}), "m", 8192)
    assert "http://127.0.0.1:8123/\n" in text
    assert "curl -N http://127.0.0.1:8123/v1/chat/completions" in text and "$PAGEWELL_API_KEY" in text
    assert 'pagewell top --url http://127.0.0.1:8123 --api-key "$PAGEWELL_API_KEY"' in text
    assert "secret" not in text


def test_a_models_name_cannot_drive_the_terminal(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "models"
    folder.mkdir(parents=True)
    (folder / "evil\x1b[2J.gguf").write_bytes(b"no GGUF")
    for args in (("models", "list"), ("models", "show", "evil\x1b[2J"), ("serve", "evil\x1b[2J", "--port", "0")):
        result = pagewell(*args, cwd=tmp_path, PAGEWELL_HOME=str(tmp_path))
        told = result.stdout + result.stderr
        assert "evil" in told and "\x1b" not in told


def test_settings_shows_what_is_in_force_but_not_the_key(tmp_path: Path) -> None:
    (tmp_path / "serving_config.toml").write_text('[serving]\nport = 4321\napi_key = "hush"\n')
    result = pagewell("settings", cwd=tmp_path)
    assert result.returncode == 0
    assert "port = 4321" in result.stdout
    assert "hush" not in result.stdout


def test_models_list_knows_the_shelf(tmp_path: Path) -> None:
    result = pagewell("models", "list", "--json", cwd=tmp_path, PAGEWELL_HOME=str(tmp_path))
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert rows["smollm2-135m-instruct"]["path"] is None
    assert len(rows) > 5
