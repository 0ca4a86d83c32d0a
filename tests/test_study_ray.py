"""A real Ray cluster of two nodes on this machine, one of which dies in the middle of its cell."""

import os
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path

import pytest
from processes import descendants

from segcal.data.prepare import prepare
from segcal.folders import is_run, read_log, read_run
from segcal.study.plan import read_plan
from segcal.study.runner import run_study
from segcal.study.watch import Watch
from segcal.types import UserError

ray = pytest.importorskip("ray", reason="needs the extra cluster")
pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")

EPOCHS = 20
SMALL = ["network.width=4", f"training.epochs={EPOCHS}", "training.lr=0.02", "after.corruptions=[]"]
QUICK_TO_NOTICE = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 3,
}


def open_files(pid):
    try:
        return {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    except OSError:
        return set()


class Reaper(Watch):
    """Kills a node, all its processes, as soon as a cell on it has ended an epoch but not its
    training.
    """

    def __init__(self, raylet, out):
        self.raylet, self.out, self.killed, self.lines, self.over = raylet, out, "", [], False
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()

    def say(self, line):
        self.lines.append(line)

    def look(self):
        while not (self.killed or self.over):
            time.sleep(0.02)
            begun = [
                path.parent
                for path in self.out.glob("runs/*/log.csv")
                if self.unfinished(path.parent)
            ]
            processes = descendants(self.raylet) if begun else ()
            held = {path for pid in processes for path in open_files(pid)}
            for run in begun:
                if str(run.with_name(f".{run.name}.lock")) in held:
                    self.killed = run.name
                    for pid in (self.raylet, *processes):
                        os.kill(pid, signal.SIGKILL)
                    return

    def unfinished(self, run):
        return is_run(run) and len(read_log(run)) < EPOCHS - 3


@pytest.fixture
def cluster(monkeypatch):
    """A head with one core and a node with another; sockets need short paths."""
    from ray.cluster_utils import Cluster

    folder, made = tempfile.mkdtemp(prefix="r", dir="/tmp"), None
    small = {"num_cpus": 1, "object_store_memory": 80 << 20}
    monkeypatch.setenv("RAY_TMPDIR", folder)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    try:
        head = small | {"include_dashboard": False, "_system_config": QUICK_TO_NOTICE}
        made = Cluster(initialize_head=True, head_node_args=head)
        node = made.add_node(**small)
        yield made.address, node.all_processes["raylet"][0].process.pid
    finally:
        ray.shutdown()
        if made is not None:
            made.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def scores(out):
    return {path.parent.name: path.read_bytes() for path in sorted(out.glob("runs/*/scores.csv"))}


def test_a_node_dies_and_the_plan_finishes_as_if_it_had_not(cluster, tmp_path, monkeypatch):
    """No cell is lost, none is run twice to another result: scores are those of a study on this
    machine.
    """
    address, raylet = cluster
    cases = prepare("phantom", to=tmp_path / "cases", n_cases=10, shape=(4, 32, 32)).cases
    plan = read_plan("smoke", data=str(cases.root), overrides=SMALL)
    reaper = Reaper(raylet, tmp_path / "cluster")
    there = run_study(plan, tmp_path / "cluster", ray=address, watch=reaper)
    reaper.over = True
    assert reaper.killed, "no cell ran on the node that was to die"
    assert not there["failed"]
    trained = [line.split(":")[1].strip() for line in reaper.lines if line.startswith("trained")]
    assert sorted(trained) == sorted(cell.name for cell in plan.cells)  # each exactly once
    here = run_study(plan, tmp_path / "here", workers=2)
    assert there["contenders"] == here["contenders"]
    assert scores(tmp_path / "cluster") == scores(tmp_path / "here")
    for cell in plan.cells:
        both = [read_run(tmp_path / name / "runs" / cell.name) for name in ("cluster", "here")]
        assert both[0]["best"] == both[1]["best"]
    monkeypatch.setattr("segcal.study.cluster.PATIENCE", 0.0)
    with pytest.raises(
        UserError, match="no node of the Ray cluster has the 64 CPU that a cell needs"
    ):
        run_study(read_plan("smoke", data=str(cases.root), cpus=64), tmp_path / "x", ray=address)


def test_no_cluster_is_named(tmp_path, unused_port):
    cases = prepare("phantom", to=tmp_path / "cases", n_cases=6, shape=(4, 24, 24)).cases
    start = time.monotonic()
    with pytest.raises(UserError, match=f"there is no Ray cluster at 127.0.0.1:{unused_port}"):
        run_study(
            read_plan("smoke", data=str(cases.root)),
            tmp_path / "out",
            ray=f"127.0.0.1:{unused_port}",
        )
    assert time.monotonic() - start < 60
    assert not (tmp_path / "out").exists()
