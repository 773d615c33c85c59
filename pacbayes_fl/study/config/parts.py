"""Tables of a study: where its data come from, how it is run, reported and made private."""

from __future__ import annotations

import math
import zoneinfo
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

from pacbayes_fl import options, settings
from pacbayes_fl.data.layout import Layout, span
from pacbayes_fl.data.scaling import ColumnScale
from pacbayes_fl.data.transforms import TRANSFORMS, Transform
from pacbayes_fl.errors import PrivacyError, StudyError, shown
from pacbayes_fl.federation.arrays import Compress
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.noise import Engine
from pacbayes_fl.options import OpenNames, option, same
from pacbayes_fl.privacy import adaptive, kinds, subspace
from pacbayes_fl.privacy.mechanisms import CohortKind, Neighbours
from pacbayes_fl.server.aggregations import aggregation_named

Told = Literal["rows", "loss", "metrics", "moments"]
"""What a node of a deployment can tell beside updates."""
SEEN: Final = (
    *("scale", "column_scale", "client_inputs", "lower_bound", "upper_bound"),
    *("transform", "transform_lambda", "ranges"),
)
"""Options of [data] that say how methods see the columns, and nothing of which rows there are."""
_LEAST: Final = 1e-8  # epsilon for which accounts are computed, and the inverse of the largest
_EXTREME: Final = "noise for less leaves nothing to learn, and with more nothing is hidden"


@dataclass(frozen=True)
class HeldOutPart:
    """Table [data.test]: the rows of a table that are for scoring alone, where it has no `split` column.

    Args:
        share: of each client's rows, the last ones.
        last: length of time before each client's last row, such as "14 days", in place of a share; a number without a
            unit where times are numbers.
    """

    share: float = option(0.25, above=0, below=1)
    last: str | None = None

    def __post_init__(self) -> None:
        """Check the range, and the length of time."""
        options.check(self, "[data.test]")
        _length("[data.test] last", self.last)


def _length(what: str, text: str | None) -> None:
    if text is not None and span(text) is None:
        raise StudyError(f"{what} must be a length of time, got {shown(text)}", hint='such as "24h" or "14 days"')


@dataclass(frozen=True)
class OriginPart:
    """Keys of [data] that say where the rows come from.

    Args:
        source: a generator of `data_gen` ("polynomial", "pv-ew", "pv-s"); images ("mnist", "fashion-mnist", "cifar10",
            "femnist", "emnist", and with "-inverted" or "-rotated" behind the name); or the path of an .npz, .csv or
            .parquet file or of a folder of images, "photos/", relative to the study's. Environment variables are
            expanded.
        options: what the generator is given, "none" for None; of images, fields of
            `data.image_federation.ImageOptions` and of the partition; of your own images, of
            `data.own_images.ReadOptions` and `data.own_images.OwnerOptions`.
        follow_seed: give the generator the run's seed, so that every seed is a new draw of the data too.
        task: "classification" where the targets of a table are labels 0, 1, 2, ...; images and .npz files say so
            themselves. "auto" takes a table's for numbers, with a warning where they look like labels, and "regression"
            without one.
    """

    source: str = "polynomial"
    options: Mapping[str, Any] = option(factory=dict)
    follow_seed: bool = False
    task: Literal["auto", "regression", "classification"] = "auto"


@dataclass(frozen=True)
class DataPart(Layout, OriginPart):
    """Table [data]: where the rows come from, what the columns of a table are, and how methods see them.

    Args:
        test: which rows of a table are for scoring alone.
        duplicate_rows: "refuse" a test row that equals a training row of its client in every number (a leak, usually),
            and a row kept for certificates that does, or "allow" it, for discrete data in which that happens by chance.
            Of images the positions are compared instead: the published sets hold some images twice. Rows of different
            times are different rows. Of your own images the pixels are compared.
        scale: units in which methods see the columns: standardised by each "client"'s training rows, where a feature
            that is constant inside clients and different between them is scaled across clients; by these moments
            "shrunk" towards those of all existing clients (empirical Bayes), as few rows say little of a client's mean
            and scale; "pooled", by those of all together; "held-out", one of these; or "none", the data's own.
        column_scale: the same by name of a feature or of the target, for those that differ, such as
            { capacity = "pooled", y = "none" }.
        client_inputs: further inputs that are the same in all rows of a client: "summaries" of its own training rows,
            scaled over the existing clients (the logarithm of the target's scale, its level against it, and its
            correlation with every feature), which tell a shared prior what kind of client it is; "none"; or
            "held-out", which of the two rows choose that a federation was not given.
        lower_bound: least value that a target can have, such as 0 of a power, or the name of a feature that has it row
            by row. What predictions of normal errors put below is the probability of the bound itself, also in NLPD;
            learning and certificates know nothing of it.
        upper_bound: likewise the largest value, such as 0.9 or "capacity".
        transform: t of the target that models learn in place of y, before it is scaled: "log1p", ln(1 + y) for y above
            -1; "logit", ln((y - low) / (high - y)) for y between `lower_bound` and `upper_bound`, not at them;
            "yeo-johnson", a power for numbers of any sign; or "none". Predictions are brought back: means, quantiles
            and scores are of y, NLPD with ln t'(y), while certificates are of t. "log1p" and "yeo-johnson" bend most
            where y is around 1, so that they depend on its unit.
        transform_lambda: power of "yeo-johnson": 1 leaves y as it is, less draws large values in, 0 as ln(1 + y) does.
            "learned" takes that under which all clients' training targets, before any scaling, are most like draws of
            one normal, by one message of sums of every client; private runs, folds and deployments refuse it.
        ranges: by name of a column, its least and largest value in its own units, known without the rows. Private runs
            need them of columns that they scale across clients, and of the target for summaries: what lies beyond
            counts as the end.
    """

    test: HeldOutPart = option(factory=HeldOutPart)
    duplicate_rows: Literal["refuse", "allow"] = "refuse"
    scale: ColumnScale | Literal["held-out"] = "client"
    column_scale: Mapping[str, Any] = option(factory=dict)
    client_inputs: Literal["none", "summaries", "held-out"] = "none"
    lower_bound: float | str | None = None
    upper_bound: float | str | None = None
    transform: str = option("none", names=lambda: ("none", *TRANSFORMS))
    transform_lambda: float | Literal["learned"] = option(0.5, low=0, high=2, symbol="lambda")
    ranges: Mapping[str, Any] = option(factory=dict)

    def __post_init__(self) -> None:
        """Check the ranges, the ways to scale a column, and that no column has two roles."""
        options.check(self, "[data]")
        if self.time is not None and self.time in (self.client, self.target, *self.marks):
            raise StudyError(f"[data] time must be a column of its own, got {self.time!r}")
        if not -math.inf <= self.bounds[0] < self.bounds[1] <= math.inf:
            raise StudyError(f"[data] lower_bound must be less than upper_bound, got {list(self.bounds)}")
        if self.transform == "logit" and not all(map(math.isfinite, self.bounds)):
            what = f"[data] transform = 'logit' needs lower_bound and upper_bound, got {list(self.bounds)}"
            raise StudyError(what, hint="such as 0 and 1; 'log1p' needs none")
        if self.transform_lambda == "learned" and self.transform != "yeo-johnson":
            what = f"[data] transform_lambda = 'learned' is of transform = 'yeo-johnson', got {shown(self.transform)}"
            raise StudyError(what, hint="data.transform = 'yeo-johnson'; or drop transform_lambda")
        for name, kind in self.column_scale.items():
            if kind not in get_args(ColumnScale):
                known = ", ".join(map(repr, get_args(ColumnScale)))
                raise StudyError(f"[data] column_scale of {name!r} must be one of {known}, got {shown(kind)}")
        for name, ends in self.ranges.items():
            two = isinstance(ends, list | tuple) and len(ends) == 2 and all(type(one) in (int, float) for one in ends)
            if not two or not -math.inf < ends[0] < ends[1] < math.inf:
                what = f"[data] ranges of {name!r} must be two finite numbers, the lesser first, got {shown(ends)}"
                raise StudyError(what, hint=f"such as data.ranges.{name} = [0, 1]")
        self._check_columns()

    def _check_columns(self) -> None:
        """Check the keys that say what the columns of a table are."""
        _length("[data] horizon", self.horizon)
        if self.zone is not None:
            try:
                zoneinfo.ZoneInfo(self.zone)
            except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
                known = sorted(zoneinfo.available_timezones())
                what = f"[data] zone: there is no time zone {shown(self.zone)}"
                raise StudyError(what, hint=settings.nearest(self.zone, known)) from None
        if (self.zone is not None or self.test.last is not None) and self.time is None:
            what = "[data] zone" if self.zone is not None else "[data.test] last"
            raise StudyError(f"{what} needs [data] time, which names the column of times")
        for key in ("features", "categorical", "client_features"):
            names = getattr(self, key)
            for name in names:
                if name in (self.client, self.target, self.time, *self.marks) or names.count(name) > 1:
                    raise StudyError(f"[data] {key} must be columns of their own, each once, got {shown(name)}")
        for name, words in self.categories.items():
            if name not in self.categorical:
                raise StudyError(f"[data] categories: {name!r} is not in [data] categorical", hint="add it there")
            if not isinstance(words, list | tuple) or not words or len({*map(str, words)}) < len(words):
                raise StudyError(
                    f"[data] categories of {name!r} must be a list of words, each once, got {shown(words)}"
                )

    @property
    def rows(self) -> DataPart:
        """The table with the defaults of `SEEN`: where it is the same, so are the rows, and scores can be compared."""
        usual = DataPart()
        return replace(self, **{name: getattr(usual, name) for name in SEEN})

    @property
    def bounds(self) -> tuple[float, float]:
        """Least and largest value of a target, infinite where there is none or a column has it."""
        low, high = self.lower_bound, self.upper_bound
        numbers = int | float
        return low if isinstance(low, numbers) else -math.inf, high if isinstance(high, numbers) else math.inf

    @property
    def target_transform(self) -> Transform | None:
        """Transform of the target with its settings, None for none; 1 stands for a power that rows will settle."""
        if self.transform == "none":
            return None
        power = 1.0 if self.transform_lambda == "learned" else self.transform_lambda
        return Transform(self.transform, *self.bounds, power)


@dataclass(frozen=True)
class MethodPart:
    """Table [method]: a name of `METHODS`, or "mine.py:MyMethod"; a preset; and the method's own options."""

    name: str = "pac-pfl"
    preset: str = "recommended"
    options: Any = None


@dataclass(frozen=True)
class FederationPart:
    """Table [federation]: fields of `federation.plan.FederationPlan`, and where and how to run.

    `train = "all"` lets clients outside of the cohort train too; what they learn stays with them.
    `rounds = "held-out"`, the default of Gaussian processes on a file of one's own, takes as many as make training rows
    of held-out clients, and held-out rows of the others, most likely (see `study.search.path`). A given number of 100
    or more is tried for a quarter of the rounds, on a file of one's own one of 25 or more for up to 50 if that takes
    seconds, with a warning where such rows become less likely; see `study.search.overfitting`, also for what is left
    out: private runs, and folds.

    Args:
        overfitting_trial: whether that number is tried, which takes about a fifth of the run's time (of a short run up
            to two thirds), or twice that where it overfits; the run itself is the same either way.
        device: "auto" takes CUDA where there is one.
        threads: threads of torch; its own choice when None.
        checkpoint_every: rounds between two checkpoints; a private run has one after every release.
    """

    rounds: int | Literal["held-out"] = same(FederationPlan, "rounds", default=400)
    cohort: int | None = same(FederationPlan, "cohort")
    train: Literal["cohort", "all"] = same(FederationPlan, "train")
    aggregate: str = same(FederationPlan, "aggregate")
    faulty: int | None = same(FederationPlan, "faulty")
    clip_multiple: float | None = same(FederationPlan, "clip_multiple")
    average_last: float = same(FederationPlan, "average_last")
    on_bad_client: Literal["drop", "stop"] = same(FederationPlan, "on_bad_client")
    min_clients: int = same(FederationPlan, "min_clients")
    chunk: int | None = same(FederationPlan, "chunk")
    waste: float = same(FederationPlan, "waste")
    noise: Engine = same(FederationPlan, "noise")
    overfitting_trial: bool = True
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int | None = option(None, low=1)
    checkpoint_every: int = option(50, low=1)
    diverges_at: float | None = same(FederationPlan, "diverges_at")

    def __post_init__(self) -> None:
        """Check the ranges, and that there is the rule; how the options of the plan go together the plan checks."""
        options.check(self, "[federation]")
        aggregation_named(self.aggregate)


@dataclass(frozen=True)
class CertifyPart:
    """Table [report.certify]: what a run leaves for certificates, which has to be said before it begins.

    Args:
        scheme: "split" keeps some training rows of every client from the training; "folds" trains a hyper-posterior for
            every fold of clients without them, so that all their rows are left; "none" leaves clients that never
            train.
        share: of every client's training rows that "split" trains on.
        folds: number of folds.
        prior: of "split": what the client's own training rows made of its model, or what the server "global"ly knows.
        independent: whether the rows of a client are independent draws of its distribution, as bounds need them; None
            where the source is known to say so: images and polynomials are, series are not, files have to be declared.
        drawn_clients: whether clients, those of the training and new ones, are independent draws of one distribution of
            clients, as a bound on new clients needs them.
        tried: configurations among which somebody chose by the training rows before the study was written, as `tune`
            does; 1 for none.
        twins: share of a column's spread within clients by which two rows may differ in every column and still count as
            one under certificates: what rounding to single precision or to a few digits, or jitter, makes of a copy; 0
            for rows that are equal in every number. Copies that a column tells apart, such as a running number, are not
            found: leave such a column out.
        tables: number of tables of certificates that will be asked of the rows, in all runs on them: each gets an even
            share of delta, and further ones are refused. None where that is open: then the k-th has a share of
            1 / (k (k + 1)), which sums to 1.
    """

    scheme: Literal["none", "split", "folds"] = "none"
    share: float = option(0.5, above=0, below=1)
    folds: int = option(4, low=2)
    prior: Literal["personal", "global"] = "personal"
    independent: bool | None = None
    drawn_clients: bool = False
    tried: int = option(1, low=1)
    twins: float = option(1e-4, low=0, below=1)
    tables: int | None = option(None, low=1)

    def __post_init__(self) -> None:
        """Check the ranges."""
        options.check(self, "[report.certify]")


@dataclass(frozen=True)
class ReportPart:
    """Table [report].

    Args:
        levels: confidence levels of the calibration error of regression (PAC-PFL, eq. 41), by name (`metrics.levels`).
        calibration_bins: equal bins of confidence on [0, 1] of a classifier's ECE, MCE and reliability diagram; 10 as
            in the public code of BPFed and FedSI, while PAC-PFL's calibration error (eq. 42) is the ECE with 20.
        evaluate_every: rounds between two scores of the learning curve; a tenth of the rounds when None.
        uncertainty_rounds: rounds, beside the last, after which a classifier's predictive entropy is recorded.
        certify: what is left for certificates.
        metrics: of one's own, each a `metrics.Metric` such as "mine.py:MY_METRIC", scored beside all built-in ones.
        intervals: 95 % intervals of Gaussian processes: quantiles of the "model"'s predictive distribution, or
            "conformal", by leave-one-out residuals (jackknife+): for clients that never trained, whose rows are
            exchangeable and whose units are not made of these (`data.scale`), they cover at least 90 %, and about 95 %
            as a rule; otherwise nothing is guaranteed. A client with fewer than 19 rows takes the quantile of the
            federation's residuals, in private runs of a noisy release of them.
        interval_blocks: of consecutive rows, each left out at once for conformal intervals (CV+), as series need where
            neighbours are alike; single rows when None.
        coverage_by: a feature, or "hour" for the hour of day of the column `data.time` (known of PV data), by which a
            run of regression says how often its 95 % intervals hold, beside doing so by client; None for no column.
        page: whether a run writes `report.html`, a page of its results for people, as `pacbayes-fl report` does at any
            time.
        keep: "all", or "no-rows": the run folder keeps no rows of clients, nor predictions of them, which can give them
            away. Who goes on with the run, predicts or certifies reads them again from their source; fingerprints tell
            whether they are the same.
    """

    levels: Literal["paper", "pacoh"] = "paper"
    calibration_bins: int = option(10, low=1)
    evaluate_every: int | None = option(None, low=1)
    uncertainty_rounds: tuple[int, ...] = (1, 10)
    certify: CertifyPart = option(factory=CertifyPart)
    metrics: tuple[str, ...] = ()
    intervals: Literal["model", "conformal"] = "model"
    interval_blocks: int | None = option(None, low=2)
    coverage_by: str | None = None
    page: bool = True
    keep: Literal["all", "no-rows"] = "all"

    def __post_init__(self) -> None:
        """Check the ranges."""
        options.check(self, "[report]")


@dataclass(frozen=True)
class PrivacyPart:
    """Table [privacy]; `epsilon` alone makes a run private, and a table without it is refused.

    Args:
        epsilon: of all releases of the run together, for whole clients; nothing is private when None, which a table has
            to say. In a simulation tables call it "epsilon_if_noise_were_secret".
        delta: 0.1 / N when None, for N clients; 0 for "laplace", "knorm" and "exponential", which then keep pure
            epsilon. A run that goes on with fewer clients keeps the delta that it has begun with.
        mechanism: see `privacy.kinds.MECHANISMS`; or one of your own, such as "mine.py:MY_NOISE", for whose account you
            vouch. "paper_algorithm_3" takes `epsilon` for what PAC-PFL claims and adds the noise that it prints; labels
            say what that gives.
        clip: largest norm of what a client sends in a round; of "exponential" the most nats of regret that a client can
            have under a candidate.
        clip_quantile: share of clients whose norm shall be at most the clip, which then begins at `clip` and follows
            their norms by a noisy count in every round, within the same budget; see `privacy.adaptive.AdaptiveClip`.
            The clip stays when None. Not for "exponential" and "paper_algorithm_3".
        clip_rate: of that: after a round whose noisy share of such clients is b, the clip's logarithm moves by
            clip_rate (clip_quantile - b).
        clip_noise: of that: scale of the noise on b. None is .05, or more where the count would take more than a tenth
            of the budget.
        subspace: number k of directions on which messages are projected before the clip, and in which they are noised;
            all their numbers are released when None. See `privacy.subspace.Subspace`.
        directions: of that: "random" ones from the study's seed, or a function of your own, such as "mine.py:basis",
            that takes D, k and that seed and gives [k, D]; you vouch that no client's data are in it.
        cohort: how the `federation.cohort` clients of a round are drawn; None is "poisson" where that is given (for
            "paper_algorithm_3" "fixed", for "dp-ftrl" "in-order") and "all" otherwise. "in-order" takes clients in
            turn, in an order that need not be secret: each pays for the rounds in which it took part.
        neighbours: what the guarantee hides; None is "replace" where a cohort has a fixed size below N and for
            "paper_algorithm_3", and "add-or-remove", for a client that sends zeros instead, otherwise.
        multiplier: the noise's scale per clip, on the sum of a cohort; None takes the least that lasts for all rounds.
            With `clip_quantile` it pays for sum and count together, and updates have a little more noise.
        candidates: priors among which every round of "exponential" chooses one, drawn from the hyper-prior and from the
            second round on around the chosen one; see `methods.pac_pfl.choice.PriorChoice`. Other mechanisms refuse any
            number but the default.
        candidate_step: how far around it, as a share of the hyper-prior's spread; likewise.
        side_share: share of `epsilon` that each message outside of the rounds takes, such as the residuals of
            `model.residuals = "mixture"`; the noise of rounds is the least with which all together keep the budget.
        ledger: file in which runs on the same rows add up what they spend, each within its own `epsilon`: one that
            would exceed its budget is refused before its first round.
        total: epsilon that all runs of the `ledger` may spend together at any client, with the delta of the first run;
            a new file needs it, and it never changes.
        randomness: of noise and cohorts. That of the "system" cannot be repeated; that of a "simulation" comes from the
            seed, and hides nothing from whoever knows it.
    """

    epsilon: float | None = option(None, low=_LEAST, high=1 / _LEAST, symbol="epsilon", hint=_EXTREME)
    delta: float | None = option(None, low=0, below=1, symbol="delta")
    mechanism: str = option("gaussian", names=lambda: OpenNames(kinds.MECHANISMS))
    clip: float = option(1.0, above=0, symbol="gamma")
    clip_quantile: float | None = option(None, above=0, below=1)
    clip_rate: float = option(adaptive.RATE, above=0)
    clip_noise: float | None = option(None, above=0)
    subspace: int | None = option(None, low=1)
    directions: str = option("random", names=lambda: OpenNames(subspace.DIRECTIONS))
    cohort: CohortKind | None = None
    neighbours: Neighbours | None = None
    multiplier: float | None = option(None, above=0)
    candidates: int = option(400, low=2, high=100_000, symbol="C")
    candidate_step: float = option(0.6, above=0, high=1)
    side_share: float = option(0.1, above=0, high=0.3)
    ledger: str | None = None
    total: float | None = option(None, low=_LEAST, high=1 / _LEAST, hint=_EXTREME)
    randomness: Literal["system", "simulation"] = "system"

    def __post_init__(self) -> None:
        """Check the ranges, and that every key is for the mechanism and the clip that the table asks for."""
        options.check(self, "[privacy]", PrivacyError)
        kind = kinds.MECHANISMS[self.mechanism]
        if kind.claim is not None and self.multiplier is not None:
            what = f"[privacy] multiplier is not for {self.mechanism}, whose noise follows from epsilon and the rounds"
            raise PrivacyError(what, hint="change epsilon, or the mechanism")
        for key in ("candidates", "candidate_step"):  # the file that a run writes has the defaults in any case
            if not kind.chooses and getattr(self, key) != getattr(type(self), key):
                what = f"[privacy] {key} is not for {self.mechanism}, which chooses among no priors"
                raise PrivacyError(what, hint=f"mechanism = 'exponential', or leave {key} out")
        of_clip, of_space = ("clip_quantile", "a clip that follows a quantile"), ("subspace", "a subspace")
        for key, (needed, what) in {"clip_rate": of_clip, "clip_noise": of_clip, "directions": of_space}.items():
            if getattr(self, needed) is None and getattr(self, key) != getattr(type(self), key):
                hint = f"give {needed}, or leave {key} out"
                raise PrivacyError(f"[privacy] {key} is of {what}, and none is given", hint=hint)
        for key, checked in {"clip_quantile": adaptive.check, "subspace": subspace.check}.items():
            if getattr(self, key) is not None:
                checked(self.mechanism)


@dataclass(frozen=True)
class DeployPart:
    """Table [deploy]: what leaves the nodes of a deployment beside updates, and how a round waits and travels.

    Args:
        share: a list of "rows", how many training rows each client has, by which updates are weighted, and alike
            without; "loss", the mean test score of a node's clients after the rounds of the learning curve
            (`report.evaluate_every`); "metrics", every client's line of clients.csv after the last round; and
            "moments", what `data.scale` = "pooled" and "shrunk" take of every client. "auto" is "rows", and nothing of
            a private run, which may share "moments", as its budget pays for them.
        deadline: seconds for which a round waits for answers.
        compress: rounds floating-point numbers to 16 bits on their way to nodes and back; the state of the server and
            those of clients stay as they are.
    """

    share: tuple[Told, ...] | Literal["auto"] = "auto"
    deadline: float = option(600.0, above=0)
    compress: Compress = "none"

    def __post_init__(self) -> None:
        """Check the range, and that nothing is said twice."""
        options.check(self, "[deploy]")
        if len({*self.share}) < len(self.share) and self.share != "auto":
            raise StudyError(f"[deploy] share names each thing once, got {shown(list(self.share))}")
