"""Runs on several hosts, each a network namespace with a name and an address of its own: cables, addresses, delays."""

import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.engine.clusters import BENCH, GRID, TRAININGS, Cluster, Run, recorded, table_of_one_host, wait_until
from tests.engine.hosts import Hosts, refused

pytestmark = pytest.mark.slow
with_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (extra ray)")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """The tidy table that one host without a network writes."""
    return table_of_one_host(tmp_path_factory.mktemp("local"), GRID)


@pytest.fixture
def hosts():
    """The head of a Ray cluster, two nodes, and the desk at which the command is typed."""
    if reason := refused():
        pytest.skip(reason)
    with (
        tempfile.TemporaryDirectory(prefix="h", dir="/tmp") as folder,
        Hosts("head", "n1", "n2", "desk", own=f"{folder}/t") as there,
    ):
        yield there


@pytest.fixture
def cluster(hosts):
    """Ray on these hosts; the head and the desk train nothing."""
    there = Cluster(Path(hosts.own).parent, hosts)
    there.start("head", cores=0)
    for name in ("n1", "n2"):
        there.start(name)
    there.start("desk", cores=0)
    return there


def _ended(cluster, run, table, tmp_path, before):
    """The run ends with the table of one host, and what had been recorded is untouched."""
    said = run.finished(900)
    assert (tmp_path / "runs" / "metrics.csv").read_bytes() == table
    assert before.items() <= recorded(tmp_path).items()
    wait_until(lambda: not cluster.hosts() and not cluster.workers())
    return said


def _under_way(cluster, hosts, tmp_path):
    """A run that has both nodes and a finished training, and its records."""
    run = cluster.command(tmp_path, "--results", "runs", prefix=hosts.on("desk", tmp_path))
    run.wait_for("n1 has joined")
    run.wait_for("n2 has joined")
    wait_until(lambda: recorded(tmp_path), 240)
    return run, recorded(tmp_path)


@with_ray
def test_the_cable_of_a_node_is_cut_for_longer_than_a_minute(cluster, hosts, table, tmp_path):
    run, before = _under_way(cluster, hosts, tmp_path)
    hosts.cut_for("n2", 75)  # Ray gives a node up after five checks of 10 s with breaks of 3 s
    if run.process.poll() is None and cluster.nodes["n2"].poll() is not None:  # Ray's node gives up; it is restarted
        cluster.nodes.pop("n2")
        cluster.start("n2")
    assert "node n2 has left" in _ended(cluster, run, table, tmp_path, before)


NFS = """\
NFS_CORE_PARAM {{ Protocols = 3; Enable_NLM = false; mount_path_pseudo = true; }}
EXPORT {{
    Export_Id = 1; Path = {folder}; Pseudo = /shared; Protocols = 3; Transports = TCP;
    Access_Type = RW; Squash = No_Root_Squash; SecType = sys; FSAL {{ Name = VFS; }}
}}
"""
"""Configuration of an NFS server in user space, NFS-Ganesha, without locks between clients."""


def test_two_hosts_share_a_folder_by_nfs_whose_server_is_away_for_a_minute(hosts, table, tmp_path):
    """Two clients in user space (fuse-nfs), which believe attributes for 3 s."""
    if missing := [name for name in ("ganesha.nfsd", "rpcbind", "fuse-nfs") if shutil.which(name) is None]:
        pytest.skip(f"{', '.join(missing)} not installed")
    source, seen = tmp_path / "source", tmp_path / "seen"
    source.mkdir()
    seen.mkdir()
    (tmp_path / "nfs.conf").write_text(NFS.format(folder=source))
    log = tmp_path / "nfs.log"
    server = f"mkdir -p /run/rpcbind && rpcbind && exec ganesha.nfsd -F -f nfs.conf -L {log} -p /run/nfs.pid"
    private = ("unshare", "--mount", "sh", "-c", f"mount -t tmpfs none /run && {server}")
    subprocess.Popen([*hosts.on("head", tmp_path), *private])
    wait_until(lambda: log.exists() and "NFS SERVER INITIALIZED" in log.read_text(), 60)
    client = f"fuse-nfs -n nfs://{hosts.addresses['head']}/shared?version=3 -m {seen} -T 3 -E 3 -N 3"
    runs = []
    for name in ("n1", "n2"):
        there = ("sh", "-c", f"{client} && while ! mountpoint -q {seen}; do sleep 0.1; done")
        subprocess.run([*hosts.on(name), *there], check=True, timeout=60)
        command = [BENCH, "run", *GRID, "--results", seen / "runs", "--workers", "1"]
        runs.append(Run([*hosts.on(name, tmp_path), *command], tmp_path, dict(os.environ)))
    wait_until(lambda: recorded(source), 240)
    before = recorded(source)
    hosts.cut_for("head", 60)
    for run in runs:
        run.finished(900)
    assert (source / "runs" / "metrics.csv").read_bytes() == table
    assert before.items() <= recorded(source).items()
    assert len(list((source / "runs").glob("*/*/*/train-*/record.json"))) == TRAININGS
