from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.server import Server as ProtocolServer

from gpusight.cli.main import main
from gpusight.mcp import capture_answers
from gpusight.mcp.protocol import protocol_server
from gpusight.mcp.workspace import Workspace
from tests.shared import DATA

SERVE = [sys.executable, "-m", "gpusight", "mcp", str(DATA)]


async def _ask(server: object) -> tuple[set[str], dict[str, object], bool]:
    """List the tools, diagnose a capture, and make a mistake."""
    async with Client(server) as client:  # type: ignore[arg-type]
        tools = {tool.name for tool in (await client.list_tools()).tools}
        answer = await client.call_tool("diagnose", {"capture": "dataload.sqlite"})
        assert answer.structured_content is None
        [content] = answer.content
        wrong = await client.call_tool("diagnose", {"capture": "../nothing"})
        return tools, json.loads(content.text), bool(wrong.is_error)  # type: ignore[union-attr]


def _check(asked: tuple[set[str], dict[str, object], bool]) -> None:
    tools, plan, refused = asked
    assert tools == {"open", "diagnose", "explain", "whatif", "compare", "query", "window"}
    assert plan["fixes"][0]["id"] == "input-starved"  # type: ignore[index]
    assert refused


def test_a_client_in_the_same_process() -> None:
    with closing(Workspace([DATA])) as workspace:
        _check(anyio.run(_ask, protocol_server(workspace)))


def test_over_stdio() -> None:
    parameters = StdioServerParameters(command=SERVE[0], args=SERVE[1:])
    _check(anyio.run(_ask, parameters))


@pytest.fixture
def http() -> Iterator[str]:
    with subprocess.Popen([*SERVE, "--http"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[0]
        process.terminate()


def test_over_http_on_this_machine(http: str) -> None:
    _check(anyio.run(_ask, http))


def test_http_is_guarded(http: str) -> None:
    port = http.split("/")[2].partition(":")[2]
    body = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'

    def status(url: str, **headers: str) -> int:
        request = urllib.request.Request(url, body, {"Content-Type": "application/json", **headers})
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    assert status(f"http://127.0.0.1:{port}/mcp") == 404
    assert status(http, Host="evil.example") == 421
    assert status(http, Origin="http://evil.example") == 403


def test_the_command_needs_its_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert main(["mcp"]) == 2
    assert "pip install 'gpusight[mcp]'" in capsys.readouterr().err


def test_the_command_names_what_is_no_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["mcp", str(tmp_path / "nothing")]) == 2
    assert "is not a folder" in capsys.readouterr().err
    assert main(["mcp", str(tmp_path), "--port", "80"]) == 2
    assert "--http" in capsys.readouterr().err


def test_a_long_query_keeps_no_other_call_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, in_time = threading.Event(), []

    def wait(*_: object) -> dict[str, Any]:
        in_time.append(opened.wait(20))
        return {"columns": [], "height": 0, "rows": []}

    monkeypatch.setattr(capture_answers, "run_query", wait)
    sql = {"capture": "dataload.sqlite", "sql": "SELECT 1 AS one"}

    async def ask(server: ProtocolServer[Any]) -> None:
        async with Client(server) as client, anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "query", sql)
            await client.call_tool("open", {})
            opened.set()

    with closing(Workspace([DATA])) as workspace:
        anyio.run(ask, protocol_server(workspace))
    assert in_time == [True]
