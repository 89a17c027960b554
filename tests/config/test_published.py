"""Configuration files of published services: the loaded configuration, and the warnings."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from penstock.batching.dispatch import LEARNED_BUDGET
from penstock.config.load import Loaded, load
from penstock.config.op import OpConfig
from penstock.config.resolve import OpOptions, advice, resolve_op
from penstock.config.schema import DagConfig, ServiceConfig, TracerConfig
from penstock.errors import ConfigError
from penstock.runtimes.runtime import ModelOptions
from tests.documents import ROOT, blocks_of

NO_EFFECT = "is not yet available and has no effect"

UCI = """\
# one regression model
worker_num: 1
rpc_port: 9998
http_port: 18082
dag:
    is_thread_op: True
    tracer:
        interval_s: 10
op:
    uci:
        concurrency: 1
        local_service_conf:
            model_config: uci_housing_model
            device_type: 0
            devices: "" # "0,1"
            client_type: local_predictor
            fetch_list: ["price"]
            precision: "fp32"
            ir_optim: True
            use_mkldnn: True
"""

IMDB_LOCAL = """\
rpc_port: 18070
http_port: 18071
worker_num: 4
dag:
    is_thread_op: True
    use_profile: True
    channel_size: 0
    tracer: {interval_s: 10}
op:
    bow: &model
        concurrency: 1
        timeout: 3000
        retry: 1
        batch_size: 2
        auto_batching_timeout: 2000
        local_service_conf: {model_config: imdb_bow, fetch_list: [prediction]}
    cnn:
        <<: *model
        batch_size: 8
        auto_batching_timeout:
        local_service_conf: {model_config: imdb_cnn, fetch_list: [prediction]}
    combine:
"""

OCR = """\
rpc_port: 18090
http_port: 9999
worker_num: 20
build_dag_each_worker: false
dag:
    is_thread_op: True
    retry: 1
    use_profile: false
    tracer:
        interval_s: 10
op:
    det:
        concurrency: 6
        local_service_conf:
            client_type: local_predictor
            model_config: ocr_det_model
            fetch_list: ["save_infer_model/scale_0.tmp_1"]
            device_type: 0
            devices: ""
            thread_num: 2
            ir_optim: True
    rec:
        concurrency: 3
        timeout: -1
        retry: 1
        local_service_conf:
            client_type: local_predictor
            model_config: ocr_rec_model
            fetch_list:
            device_type: 0
            devices: ""
            thread_num: 2
            ir_optim: True
"""


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    return tmp_path / "config.yml"


def loaded_from(path: Path, text: str) -> Loaded:
    path.write_text(text)
    return load(yml_file=path, environ={})


def resolved(config: ServiceConfig) -> dict[str, OpOptions]:
    return {name: resolve_op(name, {}, op) for name, op in config.op.items()}


def test_the_regression_service_is_loaded(config_file: Path) -> None:
    loaded = loaded_from(config_file, UCI)
    config = loaded.config
    assert config == ServiceConfig(
        worker_num=1,
        rpc_port=9998,
        http_port=18082,
        dag=DagConfig(tracer=TracerConfig(interval_s=10)),
        op=config.op,
    )
    assert loaded.warnings == []
    assert resolved(config) == {
        "uci": OpOptions(
            name="uci",
            fetch_list=("price",),
            model=ModelOptions(
                path="uci_housing_model",
                fetch_list=("price",),
                device_type=0,
                ir_optim=True,
                use_mkldnn=True,
            ),
        )
    }
    assert advice(config.worker_num, resolved(config).values()) == []


def test_the_ensemble_with_local_models_is_loaded(config_file: Path) -> None:
    loaded = loaded_from(config_file, IMDB_LOCAL)
    assert loaded.warnings == []
    assert loaded.config.op["combine"] == OpConfig()
    options = resolved(loaded.config)
    common = {"timeout": 3.0, "fetch_list": ("prediction",)}
    assert options == {
        "bow": OpOptions(
            name="bow",
            batch_size=2,
            window=2.0,
            model=ModelOptions(path="imdb_bow", fetch_list=("prediction",)),
            **common,
        ),
        "cnn": OpOptions(
            name="cnn",
            batch_size=8,
            policy="learned",
            hand_over=LEARNED_BUDGET,
            model=ModelOptions(path="imdb_cnn", fetch_list=("prediction",)),
            **common,
        ),
        "combine": OpOptions(name="combine"),
    }
    assert advice(loaded.config.worker_num, options.values()) == [
        "worker_num is 4, below the batch_size 8 of op.cnn: its batches can never be full",
    ]


def test_the_text_recognition_service_is_loaded(config_file: Path) -> None:
    loaded = loaded_from(config_file, OCR)
    assert (loaded.config.rpc_port, loaded.config.http_port) == (18090, 9999)
    assert loaded.config.worker_num == 20
    assert loaded.warnings == []
    model = {"device_type": 0, "ir_optim": True, "thread_num": 2}
    fetch = ("save_infer_model/scale_0.tmp_1",)
    assert resolved(loaded.config) == {
        "det": OpOptions(
            name="det",
            concurrency=6,
            fetch_list=fetch,
            model=ModelOptions(path="ocr_det_model", fetch_list=fetch, **model),
        ),
        "rec": OpOptions(
            name="rec", concurrency=3, model=ModelOptions(path="ocr_rec_model", **model)
        ),
    }


def test_keys_that_the_original_ignored_are_refused_unless_lenient(
    config_file: Path,
) -> None:
    text = OCR + "    pre_det:\n        concurrency: 25\n        device_type: 0\n"
    with pytest.raises(ConfigError) as caught:
        loaded_from(config_file, text)
    line = text.count("\n")
    unknown = (
        f"{config_file}:{line}: op.pre_det.device_type: is not a known key;"
        " device_type belongs under op.<name>.local_service_conf"
    )
    assert caught.value.problems == [unknown]
    loaded = load(yml_file=config_file, environ={}, lenient=True)
    assert loaded.warnings[0] == unknown
    assert loaded.config.op["pre_det"].concurrency == 25


def documented(name: str) -> str:
    return next(x for x in blocks_of(ROOT / "docs/deployment.md") if x.name == name).text


def test_the_documented_environment_of_a_platform_configures_an_app(tmp_path: Path) -> None:
    (tmp_path / "textstats.env").write_text(documented("textstats.env"))
    show = f"{sys.executable} -c 'import json, os; print(json.dumps(dict(os.environ)))'"
    command = ["sh", "-c", f"set -a; . ./textstats.env; {show}"]
    shown = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    loaded = load(yml_dict={}, environ=json.loads(shown.stdout))
    assert not loaded.warnings
    config = loaded.config
    assert config.security.scopes == {"/shout": "shout.use"}
    assert (config.priority.callers, config.quotas["ads"].callers) == ({"search": 1}, ("ads",))
    assert config.door.tls.key == "/etc/penstock/tls/tls.key"
    assert (config.strict, config.admin_port) == (True, 9090)


def test_the_documented_manifest_fits_its_own_configuration() -> None:
    settings, deployment, service = YAML(typ="safe").load_all(documented("textstats.yml"))
    loaded = load(yml_dict={}, environ=settings["data"])
    assert not loaded.warnings
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    config = loaded.config
    assert ports == {"https": config.http_port, "admin": config.admin_port}
    assert pod["terminationGracePeriodSeconds"] > config.drain_delay + config.drain_timeout
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] == "https"
    assert [each["targetPort"] for each in service["spec"]["ports"]] == ["https"]
    mounted = tuple(each["mountPath"] for each in container["volumeMounts"])
    for file in (config.door.tls.certificate, config.door.tls.key, config.security.keys):
        assert file is not None
        assert str(Path(file).parent) in mounted
