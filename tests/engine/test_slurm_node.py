"""The job file of a SLURM node, with programs in place of SLURM's and Ray's that answer as they do on a bad network."""

import os
import subprocess
from pathlib import Path

import pytest

NODE = Path(__file__).parents[2] / "examples" / "cluster" / "slurm" / "node.sbatch"

SQUEUE = """#!/bin/sh
line=$(head -n 1 "$ANSWERS")
tail -n +2 "$ANSWERS" > "$ANSWERS.left"
mv "$ANSWERS.left" "$ANSWERS"
[ "$line" = down ] && { echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; }
echo "$line"
"""
"""It gives the next line of a file as the jobs that are queued; ``down`` is no answer, and the end of the file none."""


@pytest.mark.parametrize(
    ("answers", "joined"),
    [(["7"], 1), (["down", "down", "7"], 1), (["7", "down", "7", "70"], 2), (["70", "7"], 0)],
    ids=["at once", "when the network is up", "again", "not to another head"],
)
def test_a_node_leaves_when_its_head_has_ended_and_not_when_slurm_does_not_answer(answers, joined, tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {"squeue": SQUEUE, "ray": '#!/bin/sh\necho "$1" >> "$JOINED"\n', "sleep": "#!/bin/sh\n"}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "address").write_text("10.0.0.1:6379\n")
    (tmp_path / "answers").write_text("".join(f"{line}\n" for line in answers))
    environment = os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "BENCH_CLUSTERS": str(tmp_path),
        "ANSWERS": str(tmp_path / "answers"),
        "JOINED": str(tmp_path / "joined"),
        "SLURMD_NODENAME": "n1",
        "SLURM_CPUS_PER_TASK": "1",
    }
    subprocess.run(["bash", NODE, "7"], env=environment, check=True, timeout=60)
    log = tmp_path / "joined"
    assert (log.read_text().split() if log.exists() else []) == ["start"] * joined
