"""Files of other programs that show tuning and trainings: a journal of Optuna, events of TensorBoard."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from ..engine.tuning import choose, distributions_of, objectives
from ..errors import UserError
from ..store.folder import Store


def check_tensorboard() -> None:
    """Check that the package tensorboard is installed."""
    if find_spec("tensorboard") is None:
        raise UserError("events need tensorboard: `pip install 'probembed[tensorboard]'`, or leave it out of --also")


def write_optuna(store: Store, out: Path) -> Path:
    """Write a journal with a study for each tuning of a results folder, and return its path.

    A study is called ``DATASET/METHOD/ID``. Its trials have the values that ours maximised, two of a study for both.
    """
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import TrialState, create_trial

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    path = out / "optuna.log"
    path.unlink(missing_ok=True)
    storage = JournalStorage(JournalFileBackend(str(path)))
    for record, trials in store.studies():
        tune_for, distributions = record.spec.tune_for, distributions_of(record.spec.space)
        study = optuna.create_study(
            storage=storage,
            study_name=f"{record.cell.dataset}/{record.cell.method}/{record.unit}",
            directions=["maximize"] * (2 if tune_for == "both" else 1),
        )
        chosen = choose(tune_for, trials)
        about = {"protocol": record.cell.protocol, "tuned for": tune_for, "chosen": chosen and chosen.number}
        for key, value in about.items():
            study.set_user_attr(key, value)
        for trial in trials:
            values = objectives(tune_for, trial)
            study.add_trial(
                create_trial(
                    state=TrialState.FAIL if values is None else TrialState.COMPLETE,
                    values=values,
                    params=dict(trial.params),
                    distributions=distributions,
                    user_attrs={"trainings": list(trial.units), "reason": trial.reason},
                )
            )
    return path


def write_tensorboard(store: Store, out: Path) -> Path:
    """Write the history of each training of a results folder as events, and return the folder to look at."""
    from torch.utils.tensorboard import SummaryWriter

    top = out / "tensorboard"
    for record in store.trainings():
        folder = top / record.cell.dataset / record.cell.method / f"train-{record.unit}"
        for old in folder.glob("events.out.tfevents.*"):  # of the report before
            old.unlink()
        with SummaryWriter(str(folder)) as writer:
            for epoch in record.history:
                for name in ("loss", "val_loss", "val_map_at_r"):
                    value = getattr(epoch, name)
                    if value is not None:
                        writer.add_scalar(name, value, epoch.epoch)
    return top
