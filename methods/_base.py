"""Base class of all methods: parameters, trained parts, distribution, objective and confidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.distributions import Distribution

from .distributions.normal import PointMass, RatedPoint
from .published import PublishedSource

if TYPE_CHECKING:
    from ._model import EmbeddingModel

PARTS = ("backbone", "mean", "spread", "objective")
"""Parts of a model that a method can train; the others stay as its base left them."""


@dataclass(frozen=True, kw_only=True)
class Paper:
    """Publication that a method comes from: title, venue, arXiv number and the equations that the method implements."""

    title: str
    venue: str
    arxiv: str = ""
    equations: str = ""


class MethodParams(BaseModel):
    """Base class of the hyper-parameters of a method: a frozen pydantic model that refuses unknown names.

    Each field declares a type, a default and the limits of valid values, and a search range if it is tuned.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def tuned(default: Any, low: float, high: float, *, log: bool = False, **limits: Any) -> Any:
    """Declare a hyper-parameter that a search tunes from ``low`` to ``high``, as a field of a :class:`MethodParams`.

    The default is also the value in the first trial of every search; ``log`` searches on a logarithmic scale.
    ``limits`` of what is *valid* (``gt``, ``ge``, ``lt``, ``le``) may be wider than the search. The range is kept in
    the field's ``json_schema_extra["search"]``.

    Raises:
        ValueError: If the range is empty, or if it is logarithmic and ``low`` is not positive.
    """
    if not low < high:
        raise ValueError(f"empty search range: low={low} high={high}")
    if log and low <= 0:
        raise ValueError(f"a logarithmic range needs low > 0, not {low}")
    search: dict[str, Any] = {
        "low": low,
        "high": high,
        "log": log,
        "type": "int" if isinstance(default, int) else "float",
    }
    return Field(default, json_schema_extra={"search": search}, **limits)


class UnfitBase(TypeError):
    """Error of a method on a base that lacks what the method needs; its message is one line and says what to do."""


class Method:
    """Base class of a way to learn embeddings. Subclass it, decorate with :func:`register`, and it can be benchmarked.

    The defaults describe a deterministic method trained end to end, so such a method only defines
    :meth:`objective`.

    Args:
        params: Hyper-parameters; None for the defaults.

    Attributes:
        name: Name on the command line and in results.
        summary: One line for the command ``bench list``.
        paper: Source of the method.
        deviations: Every constant or choice that is not in the paper, and why, one entry each.
        scorer: Name of the scorer, a function that compares two sets of embeddings, which is used for retrieval,
            verification and model selection.
        on_base: Whether training starts from the trained model of another method, the base (two-stage methods).
        trains: Parts of the model that the method trains, of ``backbone``, ``mean`` and ``spread`` (the two heads) and
            ``objective``.
        default_confidence: Name of the confidence that is reported for this method if only one is. A class that
            overrides :meth:`distribution` and :meth:`confidence` but not this attribute gets ``method``, the name of
            the confidence from :meth:`confidence`.
        repository: Public code that ``released`` reproduces: ``per`` (Probabilistic Embeddings Revisited) or ``el``
            (EL-nivMF, Kirchhof et al. 2022, and NIR, Roth et al. 2022); empty for any other.
        released_behaviour: Differences of ``released`` from ``corrected``, one entry each.
        form_defaults: Parameters that have another default in a released form, ``{form: {name: default}}``.
        published: Sources of published settings of this method; a registered subclass does not inherit them.
        ensemble: Whether the method is the trained models of all seeds of its base, tested together; it trains nothing.
        least_seeds: Number of seeds without which there is no result.
        reference_for_frozen: Whether heads on frozen features are always compared with this method.
        warm_start: Whether the class defines :meth:`initialise`; not to be set.
        by_steps: Whether an optimiser trains something; not to be set: a class that defines :meth:`fit` or trains
            nothing needs none.
        version: Number to raise when the method gives other values than before; it is part of the ids of results.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[Paper | None] = None
    deviations: ClassVar[tuple[str, ...]] = ()
    scorer: ClassVar[str] = "cosine"
    on_base: ClassVar[bool] = False
    trains: ClassVar[tuple[str, ...]] = PARTS
    default_confidence: ClassVar[str] = "max_cosine"
    repository: ClassVar[str] = ""
    released_behaviour: ClassVar[tuple[str, ...]] = ()
    form_defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    ensemble: ClassVar[bool] = False
    least_seeds: ClassVar[int] = 1
    reference_for_frozen: ClassVar[bool] = False
    warm_start: ClassVar[bool] = False
    by_steps: ClassVar[bool] = True
    published: ClassVar[tuple[PublishedSource, ...]] = ()
    version: ClassVar[int] = 1

    class Params(MethodParams):
        """Empty set of hyper-parameters; a method that has some defines its own class of this name."""

    params: Any

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.warm_start = cls.initialise is not Method.initialise
        cls.by_steps = cls.fit is Method.fit and bool(cls.trains)
        if cls.distribution is Method.distribution or cls.confidence is Method.confidence:
            return
        for part in cls.__mro__[: cls.__mro__.index(Method)]:
            if "default_confidence" in vars(part):
                return
            if {"distribution", "confidence"} & vars(part).keys():
                cls.default_confidence = "method"
                return

    def __init__(self, params: MethodParams | None = None) -> None:
        self.params = self.Params() if params is None else params

    @classmethod
    def forms(cls) -> tuple[str, ...]:
        """Forms of the method, ``corrected`` among them: the values of its parameter ``form``, if it has one."""
        field = cls.Params.model_fields.get("form")
        return get_args(field.annotation) if field else ("corrected",)

    @classmethod
    def defaults(cls, form: str) -> dict[str, Any]:
        """Defaults of hyper-parameters in one form that differ from those of ``corrected``: ``{name: default}``."""
        return {} if form == "corrected" else {"form": form, **cls.form_defaults.get(form, {})}

    @classmethod
    def check_base(cls, base: type[Method]) -> None:
        """Refuse a base that lacks what the method needs of it.

        Raises:
            UnfitBase: With what to do.
        """
        if cls.by_steps:
            try:
                cls().objective(2, 8, base().objective(2, 8))
            except UnfitBase:
                raise
            except Exception:  # of a plug-in; its training will say what is wrong with it
                return

    @property
    def form(self) -> str:
        """Form of the method that is computed: ``corrected``, or one that a public code computes."""
        form: str = getattr(self.params, "form", "corrected")
        return form

    @property
    def released(self) -> bool:
        """True if the method computes what a public code does rather than what the paper's equations say."""
        return self.form != "corrected"

    @property
    def warm_start_batches(self) -> int | None:
        """Number of training batches whose raw embeddings :meth:`initialise` gets; None for all of one epoch."""
        return None

    @property
    def without_effect(self) -> frozenset[str]:
        """Names of the hyper-parameters that change nothing in this form of the method; tuning does not search them."""
        return frozenset()

    @property
    def trained_parts(self) -> tuple[str, ...]:
        """Names of the trained parts: :attr:`trains`, unless a subclass lets a hyper-parameter choose them."""
        return self.trains

    @property
    def probabilistic(self) -> bool:
        """True if the embedding is more than a point: a distribution, or a point with a confidence of its own."""
        return type(self).distribution is not Method.distribution

    @property
    def means_frozen(self) -> bool:
        """True if training leaves the embedding means unchanged, so that MAP@R of the means stays the same."""
        return not {"backbone", "mean"} & set(self.trained_parts)

    def spread_head(self, in_features: int, dim: int) -> nn.Module | None:
        """Build the module from pooled features ``[B, F]`` to spread parameters ``[B, S]``; None for a point embedding.

        The S outputs per image are unbounded; :meth:`distribution` maps them to variances or concentrations.
        """
        return None

    def heads(self, model: EmbeddingModel, features: Tensor) -> tuple[Tensor, Tensor | None]:
        """Apply the two heads to pooled features ``[B, F]``: raw embeddings ``[B, D]``, and spreads ``[B, S]`` or None.

        In evaluation mode (``model.training`` is false), the outputs for an image must not depend on the other images
        of the batch.
        """
        return model.mean(features), None if model.spread is None else model.spread(features)

    def distribution(self, raw: Tensor, spread: Tensor | None) -> Distribution:
        """Make the embedding distributions of a batch from the outputs of the two heads.

        ``raw``, not normalised, is the output ``[B, D]`` of the mean head, ``spread`` that of :meth:`spread_head`,
        ``[B, S]``.
        """
        return PointMass(raw)

    def objective(self, num_classes: int, dim: int, base: nn.Module | None = None) -> nn.Module:
        """Build the training objective: a module ``(distribution, labels [B]) -> scalar loss``.

        ``base`` is the trained objective of the base, the model from which a two-stage method starts; else None.
        """
        raise TypeError(f"method {self.name!r} defines no objective")

    def initialise(self, model: EmbeddingModel, raw: Tensor, labels: Tensor) -> None:
        """Set initial values that depend on the data; called once before the first step.

        The untrained network may be changed in place; the raw embeddings ``[N, D]`` and classes ``[N]`` are those of
        the images in :attr:`warm_start_batches` training batches.
        """

    def fit(self, model: EmbeddingModel, features: Tensor, labels: Tensor) -> None:
        """Fit the trained parts in one pass, without gradients; a class that defines this is not trained by steps.

        The network has the weights of its base or, without one, starting weights; its trained parts are changed in
        place. The pooled features ``[N, F]`` are those of one augmented view of each training image, of classes
        ``[N]``.
        """
        raise TypeError(f"method {self.name!r} defines no fit")

    def confidence(self, distribution: Distribution) -> Tensor | None:
        """Confidence ``[B]`` of a probabilistic embedding, higher = more confident; None for a point."""
        return None


class RatedMethod(Method):
    """Base of methods that embed an image as a :class:`.RatedPoint`, a point with a number for its uncertainty."""

    def confidence(self, distribution: Distribution) -> Tensor | None:
        """Confidence ``[B]`` of the embeddings: the negative uncertainty; None for points without one, of training."""
        return -distribution.uncertainty if isinstance(distribution, RatedPoint) else None


M = TypeVar("M", bound=type[Method])


def register(cls: M) -> M:
    """Mark a class as a method that can be named in the benchmark: a class decorator.

    The attribute ``published`` is about one method only: it becomes empty unless the class itself defines it.

    Raises:
        TypeError: If the class is not a :class:`Method`, has no name or summary of its own, trains an unknown part, is
            fitted although it trains the backbone, is an ensemble although it trains something, or has a parameter
            ``form`` without ``corrected``.
    """
    if not issubclass(cls, Method):
        raise TypeError(f"{cls.__name__} must subclass Method")
    for field in ("name", "summary"):
        value = cls.__dict__.get(field)
        if not isinstance(value, str) or not value:
            raise TypeError(f"{cls.__name__}.{field} must be a non-empty string in the class body")
    unknown = set(cls.trains) - set(PARTS)
    if unknown:
        raise TypeError(f"{cls.__name__}.trains names unknown parts {sorted(unknown)}; known: {', '.join(PARTS)}")
    if cls.ensemble and (cls.trains or not cls.on_base):
        raise TypeError(f"{cls.__name__}: an ensemble needs on_base = True and trains = ()")
    if "corrected" not in cls.forms():
        raise TypeError(f"{cls.__name__}.Params.form is for the forms of a method, one of them 'corrected'; rename it")
    if cls.fit is not Method.fit and "backbone" in cls.trains:
        raise TypeError(f"{cls.__name__}: a fitted method trains without the backbone; set trains")
    if "published" not in cls.__dict__:
        cls.published = ()
    return cls


register_method = register
"""Another name of :func:`register`, for a file that defines a data set too."""


def no_grad_parameters(module: nn.Module) -> None:
    """Freeze a module: no gradients, and evaluation mode so that batch-norm statistics stay as they are."""
    module.eval()
    for parameter in module.parameters():
        parameter.requires_grad_(False)
