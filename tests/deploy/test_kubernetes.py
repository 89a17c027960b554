"""The files of deploy/kubernetes: each overlay is valid, and fits the service and itself."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from penstock.config.load import from_environment, unknown_variables
from penstock.observe.metrics import FAMILIES
from penstock.service.serve_flags import parser
from tests.documents import ROOT, blocks_of
from tests.kit.containerfile import environment, read
from tests.kit.kustomize import Resource, build, documents, files_of

FOLDER = ROOT / "deploy/kubernetes"
OVERLAYS = sorted((FOLDER / "overlays").iterdir())
OLDEST, NEWEST = "1.29", kubernetes_validate.latest_version()
SCHEMAS = {
    schema["properties"]["kind"]["const"]: schema
    for (schema,) in map(documents, (Path(__file__).parent / "schemas").glob("*.yaml"))
}


@pytest.fixture(params=OVERLAYS, ids=lambda path: path.name)
def resources(request: pytest.FixtureRequest) -> list[Resource]:
    return build(request.param)


def of_kind(resources: list[Resource], kind: str) -> list[Resource]:
    return [each for each in resources if each["kind"] == kind]


def deployment(resources: list[Resource]) -> Resource:
    (found,) = of_kind(resources, "Deployment")
    return found


def container(resources: list[Resource]) -> dict[str, Any]:
    (found,) = deployment(resources)["spec"]["template"]["spec"]["containers"]
    return found


def variables(resources: list[Resource]) -> dict[str, str]:
    """The environment of the service: of its image, and of the pod."""
    image = read((ROOT / "deploy/Containerfile").read_text())[1].only("ENV").text
    pod = container(resources)["env"]
    given = {each["name"]: each["value"] for each in pod if "value" in each}
    return environment(image, {"PATH": ""}) | given


# Form


def test_every_file_belongs_to_an_overlay_or_is_named_by_a_document() -> None:
    used = {file for overlay in OVERLAYS for file in files_of(overlay)}
    rest = {file.relative_to(FOLDER) for file in FOLDER.rglob("*.*") if file.resolve() not in used}
    assert {str(each) for each in rest} == {"components/hpa/adapter.yaml"}


def validate(resource: Resource) -> None:
    """Check an object: of Kubernetes by its schemas, without unknown fields, else by ours."""
    schema = SCHEMAS.get(resource["kind"])
    if schema is None:
        for version in (OLDEST, NEWEST):
            kubernetes_validate.validate(resource, version, strict=True)
    else:
        jsonschema.validate(resource, schema)


def parts(resource: Resource) -> Iterator[Resource]:
    """What is inside of a custom resource, as objects of Kubernetes."""
    spec = resource["spec"]
    if resource["kind"] == "RayCluster":
        for each in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
            yield {"apiVersion": "v1", "kind": "PodTemplate", "template": each["template"]}
    if resource["kind"] == "ScaledObject":
        scaler = spec["advanced"]["horizontalPodAutoscalerConfig"]
        of = {"scaleTargetRef": {"kind": "Deployment", "name": "x"}, "maxReplicas": 1}
        yield {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "spec": of | scaler,
        }


def test_every_object_is_valid(resources: list[Resource]) -> None:
    for each in resources:
        validate(each)
        for part in parts(each):
            validate(part)


@pytest.mark.parametrize("kind", sorted(SCHEMAS))
def test_a_schema_of_a_custom_resource_refuses_unknown_fields(kind: str) -> None:
    every = (each for overlay in OVERLAYS for each in build(overlay))
    found = next(each for each in every if each["kind"] == kind)
    found["spec"]["replicaz"] = 1
    with pytest.raises(jsonschema.ValidationError, match="replicaz"):
        validate(found)


# What the service says


def test_the_variables_are_keys_of_the_service(resources: list[Resource]) -> None:
    given = variables(resources)
    assert unknown_variables(given) == []
    keys = {key: value for key, (_, value) in from_environment(given).items()}
    assert keys["door.max_connection_age"] == 300
    pod = container(resources)
    ports = {each["name"]: each["containerPort"] for each in pod["ports"]}
    assert ports == {"http": keys["http_port"], "admin": keys["admin_port"]}


def test_a_pod_has_the_time_that_the_service_may_take(resources: list[Resource]) -> None:
    keys = {key: value for key, (_, value) in from_environment(variables(resources)).items()}
    pod = deployment(resources)["spec"]["template"]["spec"]
    drain = keys["drain_delay"] + keys["drain_timeout"]
    assert pod["terminationGracePeriodSeconds"] >= drain + 5
    startup, readiness, liveness = (
        container(resources)[f"{each}Probe"] for each in ("startup", "readiness", "liveness")
    )
    waits = startup["periodSeconds"] * startup["failureThreshold"]
    assert waits >= 600
    assert deployment(resources)["spec"]["progressDeadlineSeconds"] > waits
    # A replica that is not ready is left out before it refuses requests.
    assert readiness["periodSeconds"] * readiness["failureThreshold"] < keys["drain_delay"]
    paths = [each["httpGet"]["path"] for each in (startup, readiness, liveness)]
    assert paths == ["/readyz", "/readyz", "/livez"]
    assert {each["httpGet"]["port"] for each in (startup, readiness, liveness)} == {"http"}


def test_a_rolling_update_takes_no_replica_away_and_an_eviction_one(
    resources: list[Resource],
) -> None:
    spec = deployment(resources)["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    (budget,) = of_kind(resources, "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1
    scaled = of_kind(resources, "HorizontalPodAutoscaler") + of_kind(resources, "ScaledObject")
    assert ("replicas" in spec) is not bool(scaled)


def test_a_pod_has_no_rights_that_it_does_not_need(resources: list[Resource]) -> None:
    pod = deployment(resources)["spec"]["template"]["spec"]
    own = container(resources)["securityContext"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    assert own["readOnlyRootFilesystem"] is True
    assert own["allowPrivilegeEscalation"] is False
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    mounted = {each["mountPath"]: each["name"] for each in container(resources)["volumeMounts"]}
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert mounted.keys() >= {"/tmp", "/cache"}
    assert {*mounted.values()} == volumes.keys()
    assert all("sizeLimit" in volumes[mounted[each]]["emptyDir"] for each in ("/tmp", "/cache"))
    limits = container(resources)["resources"]
    assert limits["requests"]["memory"] == limits["limits"]["memory"]


def test_the_documented_app_of_another_team_is_valid() -> None:
    named = {each.name: each.text for each in blocks_of(ROOT / "docs/deployment.md")}
    for each in yaml.safe_load_all(named["textstats.yml"]):
        validate(each)


def test_the_cache_of_models_has_room_in_its_volume() -> None:
    resources = build(FOLDER / "overlays/model-server")
    keys = {key: value for key, (_, value) in from_environment(variables(resources)).items()}
    pod = deployment(resources)["spec"]["template"]["spec"]
    (cache,) = (each for each in pod["volumes"] if each["name"] == "cache")
    assert cache["emptyDir"]["sizeLimit"] == "10Gi"
    assert keys["model_cache_limit_mib"] < 10 * 1024


# What the objects say of each other


def test_the_service_shows_the_token_of_its_cluster() -> None:
    resources = build(FOLDER / "overlays/ray")
    (cluster,) = of_kind(resources, "RayCluster")
    assert cluster["spec"]["authOptions"] == {"mode": "token"}
    pod = {each["name"]: each for each in container(resources)["env"]}
    assert pod["RAY_AUTH_MODE"]["value"] == "token"
    # KubeRay names the secret as the cluster.
    wanted = {"name": cluster["metadata"]["name"], "key": "auth_token"}
    assert pod["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"] == wanted
    assert (
        f"--address={cluster['metadata']['name']}-head-svc:6379" in container(resources)["args"][0]
    )


def test_every_selector_selects(resources: list[Resource]) -> None:
    labels = deployment(resources)["spec"]["template"]["metadata"]["labels"].items()
    assert deployment(resources)["spec"]["selector"]["matchLabels"].items() <= labels
    services = of_kind(resources, "Service")
    ports = {each["name"] for each in container(resources)["ports"]}
    for service in services:
        assert service["spec"]["selector"].items() <= labels
        assert {each["targetPort"] for each in service["spec"]["ports"]} <= ports
    (budget,) = of_kind(resources, "PodDisruptionBudget")
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels
    (monitor,) = of_kind(resources, "ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    (scraped,) = (each for each in services if wanted <= each["metadata"]["labels"].items())
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {each["name"] for each in scraped["spec"]["ports"]}
    # The label job of the alerts and the dashboard.
    assert scraped["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "penstock"
    assert {each["metadata"]["namespace"] for each in resources} == {"penstock"}


def test_the_policy_lets_callers_scrapers_and_names_through(resources: list[Resource]) -> None:
    policies = of_kind(resources, "NetworkPolicy")
    (own,) = (each for each in policies if each["metadata"]["name"] == "penstock")
    assert own["spec"]["policyTypes"] == ["Ingress", "Egress"]
    opened = {port["port"] for rule in own["spec"]["ingress"] for port in rule["ports"]}
    assert opened == {each["containerPort"] for each in container(resources)["ports"]}
    names = own["spec"]["egress"][0]["ports"]
    assert {(each["protocol"], each["port"]) for each in names} == {("UDP", 53), ("TCP", 53)}
    for rule in (rule for each in policies for rule in each["spec"]["egress"]):
        assert rule["to"], "a rule without a destination allows all"


METRICS = {"penstock_op_queue_length", "penstock_requests_in_flight"}


def test_the_autoscaler_uses_metrics_of_ours_and_lets_go_slowly() -> None:
    (scaler,) = of_kind(build(FOLDER / "overlays/model-server"), "HorizontalPodAutoscaler")
    assert {each["pods"]["metric"]["name"] for each in scaler["spec"]["metrics"]} == METRICS
    (adapter,) = documents(FOLDER / "components/hpa/adapter.yaml")
    rules = adapter["rules"]["custom"]
    assert {each["seriesQuery"].partition("{")[0] for each in rules} == METRICS
    assert scaler["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 300
    assert scaler["spec"]["minReplicas"] >= 2


def test_keda_uses_metrics_of_ours_and_lets_go_slowly() -> None:
    (scaled,) = of_kind(build(FOLDER / "overlays/pipeline"), "ScaledObject")
    queries = [each["metadata"]["query"] for each in scaled["spec"]["triggers"]]
    assert {re.findall(r"penstock_[a-z_]+(?={)", each)[0] for each in queries} == METRICS
    assert all('{job="penstock",namespace="penstock"}' in each for each in queries)
    behaviour = scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behaviour["scaleDown"]["stabilizationWindowSeconds"] == 300
    assert scaled["spec"]["minReplicaCount"] >= 2


def test_the_metrics_of_autoscalers_are_exported() -> None:
    assert {each.name for each in FAMILIES} >= METRICS


def test_the_alerts_are_the_documented_ones(resources: list[Resource]) -> None:
    (rule,) = of_kind(resources, "PrometheusRule")
    named = {each.name: each.text for each in blocks_of(ROOT / "docs/metrics.md")}
    assert rule["spec"] == yaml.safe_load(named["penstock.rules.yml"])


def test_the_program_is_started_by_flags_that_it_knows() -> None:
    for overlay in OVERLAYS:
        pod = container(build(overlay))
        if "args" in pod and "command" not in pod:
            command, *flags = pod["args"]
            assert command == "serve"
            assert parser().parse_intermixed_args(flags).model_repository == ["s3://models"]


FAKE_RAY = """#!/bin/sh
echo "$*" >> joined
[ "$(wc -l < joined)" -gt 1 ] || exit 1  # there is no head yet
cp /bin/sleep raylet && exec ./raylet 0.5
"""
FAKE_SERVICE = """#!/bin/sh
wc -l < joined > before
echo "$$ $*"
until [ "$(wc -l < joined)" -gt 3 ]; do sleep 0.01; done
"""


@pytest.mark.real
def test_a_pod_whose_node_has_ended_joins_the_cluster_again_beside_the_service(
    tmp_path: Path,
) -> None:
    for name, text in (("ray", FAKE_RAY), ("penstock", FAKE_SERVICE)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    pod = container(build(FOLDER / "overlays/ray"))
    (command,) = pod["args"]
    # In a session of its own, whose rest ends with it.
    with subprocess.Popen(
        [*pod["command"], command.replace("sleep 5;", "sleep 0.1;")],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    ) as shell:
        try:
            assert shell.wait(60) == 0
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
        assert shell.stdout is not None
        assert shell.stdout.read() == f"{shell.pid} run app.py\n", "it is process 1"
    assert int((tmp_path / "before").read_text()) >= 1
    joined = (tmp_path / "joined").read_text().splitlines()
    assert len({*joined}) == 1
    assert joined[0].startswith("start --address=penstock-head-svc:6379 --num-cpus=0 ")
    assert joined[0].endswith(" --block")
