"""What is in deploy/: that it starts this server, by options there are, and asks it for what it tells."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
import yaml
from live_server import PATIENCE, Live, live_server
from tiny_llm import tiny_llm

from outrider.cli.app import app

DEPLOY = Path(__file__).parents[2] / "deploy"
CONTAINER = (DEPLOY / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
UNIT = (DEPLOY / "outrider.service").read_text(encoding="utf-8")
MANIFEST: list[dict[str, Any]] = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")))
BOARD = json.loads((DEPLOY / "grafana.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live_server(tiny_llm(tmp_path_factory.mktemp("tiny"), also="available", dtype="fp32")) as server:
        yield server


def instruction(name: str) -> list[str]:
    """What the last of these says in the Containerfile, in its JSON form."""
    found: list[str] = json.loads(re.findall(rf"{name}[^\n]*?(\[.*\])", CONTAINER)[-1])
    return found


def of_kind(kind: str) -> dict[str, Any]:
    (found,) = (part for part in MANIFEST if part["kind"] == kind)
    return found


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = of_kind("Deployment")["spec"]["template"]["spec"]
    return spec


def in_a_pod() -> dict[str, Any]:
    (container,) = pod()["containers"]
    return dict(container)


def by_the_unit() -> list[str]:
    (line,) = re.findall(r"^ExecStart=(.*)$", UNIT, re.MULTILINE)
    return shlex.split(line)


COMMANDS = {
    "container": instruction("ENTRYPOINT"),
    "unit": by_the_unit(),
    "pod": [*instruction("ENTRYPOINT"), *in_a_pod()["args"]],
}


@pytest.mark.parametrize("where", COMMANDS)
def test_the_command_is_one_that_the_server_understands(where: str) -> None:
    program, command, *options = COMMANDS[where]
    assert (Path(program).name, command) == ("outrider", "serve")
    serve = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    parsed = serve.make_context("serve", list(options)).params
    assert (parsed["port"], parsed["metrics_port"]) == (8000, 9000)
    assert (parsed["host"] == "0.0.0.0") == (where != "unit")
    assert where == "container" or parsed["api_keys"], "with keys, since others can reach it"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "outrider.service"
    unit.write_text(UNIT.replace("/opt/outrider/bin/outrider", shutil.which("true") or "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    told = [line for line in done.stderr.splitlines() if "outrider.service" in line]
    assert (done.returncode, told) == (0, []), done.stderr


def test_the_container_copies_what_there_is_and_gives_up_its_rights() -> None:
    for sources in re.findall(r"^COPY ([^-\n][^\n]*) \S+$", CONTAINER, re.MULTILINE):
        assert all((DEPLOY.parent / source).exists() for source in sources.split())
    assert re.search(r"^USER 10001$", CONTAINER, re.MULTILINE)
    assert re.search(r"^FROM ", CONTAINER.split("USER")[-1], re.MULTILINE) is None, "of the image that is run"


def test_the_containers_health_is_the_servers(live: Live) -> None:
    python, *command = instruction("HEALTHCHECK")
    assert python == "python"

    def healthy(port: int) -> bool:
        asked = [word.replace(":8000", f":{port}") for word in command]
        return subprocess.run([sys.executable, *asked], capture_output=True, check=False).returncode == 0

    assert healthy(live.port)
    assert not healthy(1)


def test_a_pods_probes_are_answered(live: Live) -> None:
    ports = {port["name"]: port["containerPort"] for port in in_a_pod()["ports"]}
    assert ports == {"http": 8000, "metrics": 9000}
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = in_a_pod()[name]["httpGet"]
        assert probe["port"] in ports
        assert httpx.get(live.url + probe["path"], timeout=PATIENCE).status_code == 200
    notes = of_kind("Deployment")["spec"]["template"]["metadata"]["annotations"]
    assert int(notes["prometheus.io/port"]) == ports["metrics"]
    assert httpx.get(live.watched + notes["prometheus.io/path"], timeout=PATIENCE).status_code == 200


def test_the_manifest_hangs_together() -> None:
    container, labels = in_a_pod(), of_kind("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert of_kind("Deployment")["spec"]["selector"]["matchLabels"] == labels == of_kind("Service")["spec"]["selector"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod()["volumes"]}
    claim = next(volume for volume in pod()["volumes"] if "persistentVolumeClaim" in volume)
    assert claim["persistentVolumeClaim"]["claimName"] == of_kind("PersistentVolumeClaim")["metadata"]["name"]
    assert {"cpu", "memory"} <= container["resources"]["limits"].keys()
    assert {port["targetPort"] for port in of_kind("Service")["spec"]["ports"]} == {"http"}, "metrics are not for all"
    assert pod()["terminationGracePeriodSeconds"] > 30


@pytest.mark.parametrize("kind", [part["kind"] for part in MANIFEST])
def test_the_manifest_follows_the_schema(kind: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    validate.validate(of_kind(kind), "1.31", strict=True)


def test_the_dashboard_asks_for_metrics_there_are(live: Live) -> None:
    body = {"prompt": [30, 31] * 8, "max_tokens": 24, "ignore_eos": True, "temperature": 0}
    assert live.http.post("/v1/completions", json={**body, "outrider": {"speculate": {"drafter": "suffix"}}}).is_success
    assert live.http.post("/v1/completions", json={"prompt": 5}).status_code == 400
    told = httpx.get(f"{live.watched}/metrics", timeout=PATIENCE).text
    names = {line.split("{")[0].split(" ")[0] for line in told.splitlines() if not line.startswith("#")}
    asked = {name for panel in BOARD["panels"] for target in panel["targets"]
             for name in re.findall(r"outrider:\w+", target["expr"])}  # fmt: skip
    by_auto = {name for name in asked if re.search(r"_(acceptance|cost)$", name)}  # while it is auto that decides
    assert len(asked) > 20
    assert asked - by_auto <= names, asked - by_auto - names
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in BOARD["panels"]]
    assert len(set(places)) == len(places) == len({panel["id"] for panel in BOARD["panels"]})


def test_metrics_have_vllms_names(live: Live) -> None:
    page = httpx.get(f"{live.watched}/metrics", timeout=PATIENCE).text
    for name in (
        *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total"),
        *("prompt_tokens_total", "generation_tokens_total", "prefix_cache_hits_total", "prefix_cache_queries_total"),
        *("spec_decode_num_drafts_total", "spec_decode_num_accepted_tokens_total"),
    ):
        values = [re.findall(rf"^{prefix}:{name}{{.*}} (.*)$", page, re.MULTILINE) for prefix in ("vllm", "outrider")]
        assert values[0] == values[1] != [], name
    assert "vllm:controller" not in page
    assert "vllm:request_errors" not in page
