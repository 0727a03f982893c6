"""The files in cluster/, as far as they can be checked here: their fields, Ray's flags, what they keep shut."""

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import jsonschema
import pytest
import ray
import yaml
from packaging.requirements import Requirement
from ray.scripts.scripts import start as ray_start

CLUSTER = Path(__file__).parents[2] / "cluster"
SCRIPTS = sorted(CLUSTER.glob("*.sh"))
LAUNCHER = ["aws.yaml", "gcp.yaml", "on-premise.yaml"]
KUBERAY = ["raycluster.yaml", "rayjob.yaml"]
RAY = re.search(r"^ray\[default\]==(\S+)", (CLUSTER.parent / "requirements.txt").read_text(), re.MULTILINE).group(1)
# What `ray start --help` prints, and the flags it hides.
RAY_FLAGS = {flag for parameter in ray_start.params for flag in parameter.opts}

# KubeRay's API reference, ray.io/v1; authOptions since 1.5.1.
RAY_CLUSTER = {
    "authOptions", "autoscalerOptions", "enableInTreeAutoscaling", "gcsFaultToleranceOptions", "headGroupSpec",
    "headServiceAnnotations", "managedBy", "rayVersion", "suspend", "workerGroupSpecs",
}  # fmt: skip
RAY_JOB = {
    "activeDeadlineSeconds", "backoffLimit", "clusterSelector", "deletionStrategy", "entrypoint", "entrypointNumCpus",
    "entrypointNumGpus", "entrypointResources", "jobId", "managedBy", "metadata", "rayClusterSpec", "runtimeEnvYAML",
    "shutdownAfterJobFinishes", "submissionMode", "submitterConfig", "submitterPodTemplate", "suspend",
    "ttlSecondsAfterFinished",
}  # fmt: skip
HEAD_GROUP = {"enableIngress", "headService", "rayStartParams", "serviceType", "template"}
WORKER_GROUP = {
    "groupName", "idleTimeoutSeconds", "maxReplicas", "minReplicas", "numOfHosts", "rayStartParams", "replicas",
    "scaleStrategy", "suspend", "template",
}  # fmt: skip
POD = {"automountServiceAccountToken", "containers", "restartPolicy", "securityContext", "volumes"}
CONTAINER = {"env", "image", "name", "resources", "securityContext", "volumeMounts"}


def documents(name: str) -> list[dict]:
    return list(yaml.safe_load_all((CLUSTER / name).read_text()))


def starts(name: str) -> list[str]:
    """The `ray start` commands of a launcher file."""
    (config,) = documents(name)
    commands = config["head_start_ray_commands"] + config["worker_start_ray_commands"]
    return [command for command in commands if "ray start" in command]


def test_ray_is_the_version_that_is_checked_against():
    assert ray.__version__ == RAY


def test_every_file_says_what_to_change_and_stands_in_the_readme():
    readme = (CLUSTER / "README.md").read_text()
    for path in CLUSTER.iterdir():
        if path.suffix in (".sh", ".yaml") or path.name == "Dockerfile":
            beginning = path.read_text()[:600]
            assert path.name == "common.sh" or "To change:" in beginning, path.name
        assert path.name in readme or path.name in ("README.md", "common.sh"), path.name
    for path in (CLUSTER / "monitoring").rglob("*.y*ml"):
        assert "To change:" in path.read_text(), path


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_parse_use_only_flags_ray_has_and_never_stop_everybodys_ray(path):
    subprocess.run(["bash", "-n", path], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", "-x", path], check=True, cwd=CLUSTER.parent)
    text = re.sub(r"^\s*#.*$", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    assert "ray stop" not in text
    if path.name == "common.sh":  # every port that Ray would choose by itself, and no other
        named = " ".join(re.findall(r"_ports\+?=\(([^)]*)\)", text)).split()
        flags = {f"--{name}" for name in named if not name.isupper()}
        rays = {flag for flag in RAY_FLAGS if flag.endswith("-port") or flag == "--port"}
        assert flags == rays - {"--min-worker-port", "--max-worker-port"}  # 0
    elif path.name != "mps.sh":  # which is run before Ray
        assert "launch_node" in text
    if path.name == "common.sh":
        return
    assert os.access(path, os.X_OK)
    assert "set -euo pipefail" in text
    commands = [line for line in text.splitlines() if re.search(r"\bray start |\blaunch_node |\blocal node=", line)]
    for command in commands:
        assert set(re.findall(r"(--[a-z-]+)", command)) <= RAY_FLAGS, command


@pytest.mark.parametrize("name", LAUNCHER)
def test_launcher_files_have_rays_fields_and_keep_the_dashboard_and_the_token_private(name):
    (config,) = documents(name)
    schema = Path(ray.__file__).parent / "autoscaler" / "ray-schema.json"
    jsonschema.validate(config, json.loads(schema.read_text()))
    head, worker = starts(name)
    for command in (head, worker):
        assert set(re.findall(r"(--[a-z-]+)", command)) <= RAY_FLAGS
        assert command.startswith("RAY_AUTH_MODE=token ray start ")
    assert "--head" in head
    assert "--dashboard-host=127.0.0.1" in head
    assert "--address=$RAY_HEAD_IP:6379" in worker
    assert config["file_mounts"] == {"~/.ray/auth_token": "~/.ray/auth_token"}
    assert "chmod 600 ~/.ray/auth_token" in config["setup_commands"]
    assert "--env RAY_AUTH_MODE=token" in config["docker"]["run_options"]
    assert "0.0.0.0" not in (CLUSTER / name).read_text()
    if name != "on-premise.yaml":
        types = config["available_node_types"]
        assert config["head_node_type"] in types
        assert all(kind["max_workers"] <= config["max_workers"] for kind in types.values() if "max_workers" in kind)
    else:
        assert {"type", "head_ip", "worker_ips"} <= config["provider"].keys()


def test_aws_gets_no_permission_it_does_not_need():
    (config,) = documents("aws.yaml")
    for kind in config["available_node_types"].values():  # what is left out Ray makes, with far more rights
        assert {"IamInstanceProfile", "SecurityGroupIds", "SubnetIds"} <= kind["node_config"].keys()
        assert kind["node_config"]["MetadataOptions"] == {"HttpTokens": "required"}
    head, worker = (config["available_node_types"][kind]["node_config"] for kind in ("head", "worker"))
    assert head["IamInstanceProfile"] != worker["IamInstanceProfile"]
    policy = json.loads((CLUSTER / "aws-policy.json").read_text())
    for statement in policy["Statement"]:
        assert statement["Effect"] == "Allow"
        actions = [statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]
        assert not any("*" in action for action in actions)
        if statement["Resource"] == "*":  # AWS knows nothing narrower for these
            assert all(action.startswith("ec2:Describe") for action in actions)
    text = json.dumps(policy)
    assert all(f"{value}" in text for value in (head["InstanceType"], head["ImageId"], config["provider"]["region"]))
    assert all(value in text for value in (*head["SubnetIds"], *head["SecurityGroupIds"], config["cluster_name"]))


def check_pod(template: dict) -> None:
    """Known fields, our label and image, not root, and nothing more than it needs."""
    assert template.keys() == {"metadata", "spec"}
    assert template["metadata"]["labels"] == {"app": "raysim"}
    spec = template["spec"]
    assert spec.keys() <= POD
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    (container,) = spec["containers"]
    assert container.keys() <= CONTAINER
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert container["resources"].keys() == {"requests", "limits"}


@pytest.mark.parametrize("name", KUBERAY)
def test_kuberay_files_have_its_fields_a_token_and_no_way_in_from_outside(name):
    resource, policy = documents(name)
    assert resource.keys() == policy.keys() == {"apiVersion", "kind", "metadata", "spec"}
    assert resource["apiVersion"] == "ray.io/v1"
    if resource["kind"] == "RayJob":
        assert resource["spec"].keys() <= RAY_JOB
        job = re.search(r"/home/ray/raysim/(jobs/\w+\.py)", resource["spec"]["entrypoint"]).group(1)
        assert (CLUSTER.parent / job).exists()
        check_pod(resource["spec"]["submitterPodTemplate"])
        cluster = resource["spec"]["rayClusterSpec"]
    else:
        assert resource["kind"] == "RayCluster"
        cluster = resource["spec"]
    assert cluster.keys() <= RAY_CLUSTER
    assert cluster["rayVersion"] == RAY
    assert cluster["authOptions"] == {"mode": "token"}
    head = cluster["headGroupSpec"]
    assert head.keys() <= HEAD_GROUP
    assert head["serviceType"] == "ClusterIP"
    check_pod(head["template"])
    for group in cluster["workerGroupSpecs"]:
        assert group.keys() <= WORKER_GROUP
        check_pod(group["template"])
        assert "nvidia.com/gpu" in group["template"]["spec"]["containers"][0]["resources"]["limits"]
    for params in [head["rayStartParams"], *(group["rayStartParams"] for group in cluster["workerGroupSpecs"])]:
        assert {f"--{name}" for name in params} <= RAY_FLAGS
        assert all(isinstance(value, str) for value in params.values())
    assert (policy["apiVersion"], policy["kind"]) == ("networking.k8s.io/v1", "NetworkPolicy")
    assert policy["spec"]["podSelector"] == {"matchLabels": {"app": "raysim"}}
    assert policy["spec"]["policyTypes"] == ["Ingress"]


def test_one_image_for_all_with_the_pinned_ray_and_not_as_root():
    lines = [line.split() for line in (CLUSTER / "Dockerfile").read_text().splitlines() if line and line[0] != "#"]
    assert lines[0] == ["FROM", f"rayproject/ray:{RAY}-py311-gpu"]
    assert [words[1] for words in lines if words[0] == "USER"][-1] == "ray"
    for words in lines:
        if words[0] == "COPY":
            assert (CLUSTER.parent / words[2]).exists()
    texts = "".join((CLUSTER / name).read_text() for name in LAUNCHER + KUBERAY)
    assert set(re.findall(r"image: (\S+)", texts)) == {"registry.example.com/raysim:1"}


def test_the_image_has_what_the_package_needs_at_versions_it_allows_and_no_tools_for_tests():
    assert "sed '/^# Check/,$d' requirements.txt > run.txt" in (CLUSTER / "Dockerfile").read_text()
    project = tomllib.loads((CLUSTER.parent / "pyproject.toml").read_text())["project"]
    run, check = (CLUSTER.parent / "requirements.txt").read_text().split("\n# Check\n")
    for part, ranges in [(run, project["dependencies"]), (check, project["optional-dependencies"]["dev"])]:
        pins = {r.name: r for r in map(Requirement, re.findall(r"^[a-z]\S+", part, re.MULTILINE))}
        allowed = {r.name: r for r in map(Requirement, ranges)}
        assert pins.keys() - {"setuptools"} == allowed.keys()
        for name, wanted in allowed.items():
            (pin,) = pins[name].specifier
            assert pin.operator == "=="
            assert wanted.specifier.contains(pin.version), name
            assert pins[name].extras == wanted.extras


def test_slurm_asks_for_one_task_per_node():
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", (CLUSTER / "slurm.sh").read_text(), re.MULTILINE))
    known = {"job-name", "nodes", "ntasks-per-node", "cpus-per-task", "gpus-per-node", "time"}
    assert asked.keys() == known
    assert asked["ntasks-per-node"] == "1"
