"""The way a model goes: read, validate, rewrite, validate again, compare with the original, write."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from litefuse.check import CheckResult
from litefuse.check import check as compare
from litefuse.errors import (
    CheckError,
    LitefuseError,
    OutputError,
    RuntimeMissingError,
    UnknownFieldError,
    UsageError,
)
from litefuse.fusions import LEVELS, FusionReport, Numerics, Rule, run, select
from litefuse.fusions import rules as all_rules
from litefuse.graph.compact import compact, drop_metadata, metadata_buffer
from litefuse.graph.freeze import FreezeReport, freeze
from litefuse.report.stats import ModelStats, measure
from litefuse.schema import deepcopy, read, write
from litefuse.schema.enums import TensorType
from litefuse.schema.model import Model
from litefuse.schema.validate import Problem, validate

if TYPE_CHECKING:
    from litefuse.arena.budget import Settled
    from litefuse.delegates.formation import Formation
    from litefuse.delegates.targets import Target

Progress = Callable[[str], None]

# Input sets on which the result is run with the delegate: what it is compared with are slow reference kernels.
_DELEGATE_CASES = 3

TFLM = ("tflm", "cortex-m")
"""Targets for which :func:`convert` plans memory; the others are hardware profiles, for which it forms regions."""


@dataclass
class Conversion:
    """What :func:`convert` did."""

    model: Model
    """The result."""
    fusions: FusionReport
    """The outcome of every candidate."""
    check: CheckResult | None
    """The comparison with the original; None when it was not asked for."""
    before: ModelStats
    after: ModelStats
    problems: list[Problem]
    """What the validator says about the original."""
    rules: list[Rule]
    """The rules that were used, whether they found something or not."""
    frozen: FreezeReport | None = None
    """Which shapes were fixed; None when none were to be."""
    memory: Settled | None = None
    """How the model keeps to its memory budget; None when neither a budget nor TFLM as the target was given."""
    regions: Formation | None = None
    """What was packaged for the delegate; None when nothing was to be."""
    delegate_check: CheckResult | None = None
    """The comparison with the original where the delegate runs the result; None when that was not asked for."""
    output: Path | None = None
    """The file that was written, if any."""
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each stage took."""

    @property
    def numerics(self) -> Numerics:
        """The weakest promise among the rules that were applied: the class to which `check` held the result."""
        return _weakest(self.rules, self.fusions)

    @property
    def not_run(self) -> str | None:
        """Why the original could not be run, so that only exact rules were used; None when it was, or was not to be."""
        return self.check.skipped if self.check is not None and self.check.skipped else None


def convert(
    model: Model | str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    disable: Iterable[str] = (),
    only: Iterable[str] = (),
    keep: Iterable[str] = (),
    level: str = "default",
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    batch: int | None = None,
    target: str | None = None,
    arena_budget: int | None = None,
    package: str | None = None,
    disable_regions: Iterable[str] = (),
    check: bool = True,
    keep_fp16: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> Conversion:
    """Improves a model and proves that it still computes the same.

    A model that the installed runtime cannot run is rewritten by exact rules only; :attr:`Conversion.not_run` says so.

    Args:
        model: a model, or the path of one; it is not modified.
        output: where to write the result; it may not be the input. None writes nothing.
        disable: name or names of rules that are not to be used.
        only: name or names of the rules that are to be used, and no others; all when empty.
        keep: name or names of tensors that must stay as they are, with the operators that compute them.
        level: "exact" uses rules of that class only, and keeps the delegate from Winograd's algorithm; "default" uses
            all but those that may change integers by a step, "aggressive" all.
        input_shapes: shapes for inputs with unknown dimensions, by tensor or signature name; see
            :func:`litefuse.graph.freeze.freeze`.
        batch: what the first dimension of every input becomes where it is unknown.
        target: "tflm" (or "cortex-m") for TensorFlow Lite Micro: no operator is made that it lacks, and a memory plan
            that it follows is attached where that is better than its own. Otherwise the name of a hardware profile
            (:mod:`litefuse.delegates.targets`) or the path of a measured one, for which regions are formed.
        arena_budget: bytes that TFLM's arena may take for intermediates (its head); where reordering and sharing do not
            suffice, the first stages are computed in tiles. Implies the target "tflm".
        package: how regions are packaged for litefuse's delegate: "composite", "plan", "custom", or "none". The
            default is "plan" when a hardware profile is the target, and "none" otherwise.
        disable_regions: name or names of kinds of regions that are not wanted.
        check: whether to compare the result with the original, on seeded random and edge inputs.
        keep_fp16: whether weights stored as float16 stay so; otherwise they are widened to float32.
        seed: of the inputs for the comparison.
        progress: called with a few words whenever something begins.

    Raises:
        SchemaError: the input cannot be read, or uses fields newer than this version, so it could not be written
            without loss.
        CheckError: the result does not compute the same within the class of its rules; nothing is written.
        RuntimeMissingError: there is no runtime to compare with.
        BudgetError: the intermediates do not fit into the budget, however the model is computed.
        OutputError: ``output`` is the input, or cannot be written.
        UsageError: a rule, level, target or tensor to keep does not exist.
        LitefuseError: a model with operators that the target lacks, an input too damaged to be rewritten, or a defect
            of litefuse.
    """
    clock = _Clock(progress)
    target, profile, mode = _targets(target, arena_budget, package)
    wish = Wish(
        choose(disable, only, level, keep_fp16),
        frozenset(_names(keep)),
        dict(input_shapes or {}),
        batch,
        target,
        arena_budget,
        profile,
        mode,
        _kinds(disable_regions),
        level != "exact",
    )
    with clock.stage("reading"):
        original = model if isinstance(model, Model) else read(model)
    refuse_to_write(original, output)
    with clock.stage("validating"):
        problems = validate(original)
        before = measure(original)
    made = _rewrite(original, wish, problems, clock)
    compared = None
    if check:
        try:
            compared = _confirm(model, made, wish, seed, clock)
        except CheckError as error:
            if _weakest(wish.rules, made.fusions) is not Numerics.REPAIR:
                raise
            wish = wish.only(*set(Numerics) - {Numerics.REPAIR})
            made = _rewrite(original, wish, problems, clock)
            made.fusions.notes.append(f"repairs were left out, since the comparison did not confirm them: {error}")
            compared = _confirm(model, made, wish, seed, clock)
        if compared.skipped:
            weakest = _weakest(wish.rules, made.fusions)
            wish = wish.only(Numerics.EXACT)
            if weakest is not Numerics.EXACT:
                made = _rewrite(original, wish, problems, clock)
    with_delegate = None
    if check and made.regions is not None and made.regions.regions and not (compared and compared.skipped):
        with_delegate = _confirm_delegate(made, seed, clock)
    after = measure(made.model)
    done = Conversion(made.model, made.fusions, compared, before, after, problems, wish.rules, made.frozen, made.memory)
    done.regions, done.delegate_check = made.regions, with_delegate
    if output is not None:
        with clock.stage("writing"):
            write(made.model, output)
        done.output = Path(output)
        after.file_bytes = done.output.stat().st_size
    done.seconds = clock.seconds
    return done


class Wish(NamedTuple):
    """What is to be done to a model."""

    rules: list[Rule]
    keep: frozenset[str]
    input_shapes: dict[str, Sequence[int]]
    batch: int | None
    target: str | None = None
    arena_budget: int | None = None
    profile: Target | None = None
    """For which regions are formed."""
    package: str = "none"
    without: tuple[str, ...] = ()
    """Kinds of regions that are not wanted."""
    winograd: bool = True
    """Whether the delegate may use Winograd's algorithm in them."""

    def only(self, *classes: Numerics) -> Wish:
        """The same with rules of these classes alone."""
        return self._replace(rules=select(self.rules, classes=classes))


class _Made(NamedTuple):
    """What the rules made of a model."""

    model: Model
    fusions: FusionReport
    frozen: FreezeReport | None
    faults: frozenset[str]
    """The errors that the original had and the model still has."""
    memory: Settled | None = None
    regions: Formation | None = None
    plain: Model | None = None
    """The model before its regions were packaged."""


def _targets(name: str | None, budget: int | None, package: str | None) -> tuple[str | None, Target | None, str]:
    """The runtime to prepare for, the profile to form regions for, and how to package them."""
    name = "tflm" if name is None and budget is not None else name
    if package is None:
        package = "none" if name is None or name in TFLM else "plan"
    if name in TFLM:
        if package != "none":
            raise UsageError(f"{name} runs no delegate, so that there is nothing to package; leave `package` out")
        return "tflm", None, package
    if name is None and package == "none":
        return None, None, package
    from litefuse.delegates.package import MODES  # not needed otherwise
    from litefuse.delegates.targets import DEFAULT, target

    if package not in MODES:
        raise UsageError(f"there is no packaging `{package}`; there are {', '.join(MODES)}")
    profile = target(DEFAULT if name is None else name)
    if budget is not None:
        raise UsageError(f"a memory budget is for TensorFlow Lite Micro, not for {name}")
    return None, None if package == "none" else profile, package


def _kinds(names: Iterable[str]) -> tuple[str, ...]:
    """Kinds of regions, which may be spelled as their nodes are called."""
    return tuple(name.removeprefix("litefuse.") for name in _names(names))


def choose(disable: Iterable[str], only: Iterable[str], level: str, keep_fp16: bool = True) -> list[Rule]:
    """The rules that these options of :func:`convert` leave. Raises UsageError for an unknown rule or level."""
    if level not in LEVELS:
        raise UsageError(f"there is no level `{level}`; the levels are {', '.join(LEVELS)}")
    return select(all_rules(widen_fp16=not keep_fp16), _names(disable), LEVELS[level], only=_names(only))


def _names(names: Iterable[str]) -> list[str]:
    """A single name may be given as it is."""
    return [names] if isinstance(names, str) else list(names)


@dataclass
class Explanation:
    """What :func:`explain` found out."""

    model: Model
    """What the result of `convert` would be."""
    fusions: FusionReport
    """Every candidate; the applied ones are those that `convert` would apply."""
    rules: list[Rule]
    """The rules that were asked."""
    frozen: FreezeReport | None = None
    """Which shapes would be fixed; None when none were to be."""
    regions: Formation | None = None
    """Which regions there would be, and what they would save; None when none were to be formed."""


def explain(
    model: Model | str | os.PathLike[str],
    *,
    disable: Iterable[str] = (),
    only: Iterable[str] = (),
    keep: Iterable[str] = (),
    level: str = "default",
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    batch: int | None = None,
    target: str | None = None,
    package: str | None = None,
    disable_regions: Iterable[str] = (),
    keep_fp16: bool = True,
    progress: Progress | None = None,
) -> Explanation:
    """Says what :func:`convert` would do with a model, and why it would not do more. Runs and writes nothing.

    Takes the options of :func:`convert` and raises as it does.
    """
    target, profile, mode = _targets(target, None, package)
    wish = Wish(
        choose(disable, only, level, keep_fp16),
        frozenset(_names(keep)),
        dict(input_shapes or {}),
        batch,
        target,
        None,
        profile,
        mode,
        _kinds(disable_regions),
        level != "exact",
    )
    original = model if isinstance(model, Model) else read(model)
    refuse_to_write(original, None)
    made = _rewrite(original, wish, validate(original), _Clock(progress))
    return Explanation(made.model, made.fusions, wish.rules, made.frozen, made.regions)


class _Clock:
    """Names the stages to the user as they begin and adds up their time."""

    def __init__(self, progress: Progress | None) -> None:
        self.progress = progress
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        if self.progress:
            self.progress(name)
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def refuse_to_write(original: Model, output: str | os.PathLike[str] | None) -> None:
    """Raises what can be known before any work is done.

    Raises:
        UnknownFieldError: the model could not be written without loss.
        OutputError: the output is the file that the model came from.
    """
    if original.unknown:
        place = f"{original.path}: " if original.path else ""
        raise UnknownFieldError(
            f"{place}cannot be converted without loss: {original.unknown}; upgrade litefuse, or leave the file as it is"
        )
    if output is None or original.path is None:
        return
    with contextlib.suppress(OSError):  # no output yet, or an input that is gone
        if os.path.samefile(original.path, output):
            raise OutputError(f"{os.fspath(output)}: is the input itself; choose another output")


def _rewrite(original: Model, wish: Wish, problems: Sequence[Problem], clock: _Clock) -> _Made:
    """Rewrites a copy as wished: rules first, then what the target and the budget ask for."""
    made = _apply(original, wish, problems, clock)
    if wish.profile is not None:
        return _package(made, wish, clock)
    if wish.target is None:
        return made
    from litefuse.arena.budget import settle  # not needed otherwise, and large
    from litefuse.arena.tflm import unsupported

    lacking = unsupported(made.model)
    if lacking and unsupported(original):
        more = f" (and {len(lacking) - 1} more)" if len(lacking) > 1 else ""
        raise LitefuseError(f"{wish.target} cannot run this model: {lacking[0]}{more}")
    # Rules may write operators that the target lacks: those which do are left out.
    left_out: list[str] = []
    used = made.fusions.counts()
    for rule in [rule for rule in wish.rules if rule.name in used]:
        if not lacking:
            break
        fewer = wish._replace(rules=[r for r in wish.rules if r is not rule])
        other = _apply(original, fewer, problems, clock)
        fewer_lacking = unsupported(other.model)
        if len(fewer_lacking) < len(lacking):
            wish, made, lacking = fewer, other, fewer_lacking
            left_out.append(rule.name)
    made.fusions.notes += [f"{name} was not used, since {wish.target} lacks what it writes" for name in left_out]
    with clock.stage("planning memory"):
        memory = settle(made.model, budget=wish.arena_budget, progress=clock.progress)
    saved = memory.peak_before - memory.peak
    if memory.records > saved:
        made.fusions.notes.append(
            f"the operators that tiling adds cost about {memory.records:,} bytes of TFLM's records on a 64-bit host, "
            f"half on 32 bits; it saves {saved:,} bytes of intermediates: a larger budget may take less in all"
        )
    return made._replace(model=memory.model, memory=memory)


def _package(made: _Made, wish: Wish, clock: _Clock) -> _Made:
    """Forms regions for the profile and packages them."""
    from litefuse.delegates.formation import form  # not needed otherwise

    assert wish.profile is not None
    with clock.stage("forming regions"):
        plain = deepcopy(made.model)
        regions = form(
            made.model,
            wish.profile,
            wish.package,
            disable=wish.without,
            keep=wish.keep,
            winograd=wish.winograd,
        )
        new = [p for p in validate(made.model) if p.severity == "error" and p.message not in made.faults]
    if new:
        raise LitefuseError(f"packaging made an invalid model: {new[0]}; nothing was written. Please report this file")
    made.fusions.notes.extend(regions.packaged.notes)
    return made._replace(regions=regions, plain=plain)


def _apply(original: Model, wish: Wish, problems: Sequence[Problem], clock: _Clock) -> _Made:
    """Fixes shapes in a copy and applies the rules to it; makes sure that they broke nothing that was whole."""
    faults = [p for p in problems if p.severity == "error"]
    with clock.stage("rewriting"):
        result = deepcopy(original)
        result.path = None
        try:
            frozen = (
                freeze(result, wish.input_shapes, wish.batch) if wish.input_shapes or wish.batch is not None else None
            )
            fusions = run(result, wish.rules, clock.progress, keep=wish.keep)
        except (IndexError, KeyError) as error:
            if not faults:
                raise
            raise LitefuseError(f"the model is too damaged to be rewritten: {faults[0]}") from error
        if fusions.applied:
            _drop_plan(result, fusions)
        known = {p.message for p in faults}
        left = [p for p in validate(result) if p.severity == "error"]
        new = [p for p in left if p.message not in known]
    if new:
        raise LitefuseError(
            f"the rules {', '.join(fusions.counts())} made an invalid model: {new[0]}; nothing was written. Please "
            f"report this file; `--disable` switches a rule off"
        )
    for rule in wish.rules:
        if rule.numerics is Numerics.REPAIR and rule.name in fusions.counts():
            fusions.notes.append(
                f"{rule.name} repaired {fusions.counts()[rule.name]} places where the original is numerically wrong "
                f"for some inputs: `litefuse rules {rule.name}` says which"
            )
    return _Made(result, fusions, frozen, frozenset(p.message for p in left))


def _drop_plan(model: Model, fusions: FusionReport) -> None:
    """Removes a plan of regions, which no longer fits the operators."""
    plan, package = "litefuse.plan", "litefuse.package"  # spelled here, so that the delegate's modules are not needed
    if metadata_buffer(model, plan) is None:
        return
    for name in (plan, package):
        drop_metadata(model, name)
    compact(model, [list(subgraph.operators) for subgraph in model.subgraphs])
    fusions.notes.append(
        "the plan of regions was dropped, since operators have changed; `--package plan` makes a new one"
    )


def _confirm(model: Model | str | os.PathLike[str], made: _Made, wish: Wish, seed: int, clock: _Clock) -> CheckResult:
    """Compares with the original. Raises CheckError when the result does not compute the same."""
    used = made.fusions.counts()
    numerics = _weakest(wish.rules, made.fusions)
    if numerics is Numerics.EXACT and made.memory is not None and made.memory.tiled and _computes_floats(made.model):
        numerics = Numerics.REASSOCIATED  # kernels may add up a patch in another way than the whole
    with clock.stage("comparing"):
        compared = compare(
            model,
            # Custom operators run nowhere but in the delegate.
            made.plain if made.plain is not None and wish.package == "custom" else made.model,
            numerics=numerics,
            deviation=max((rule.deviation for rule in wish.rules if rule.name in used), default=0.0),
            seed=seed,
            progress=clock.progress,
            isolated=True,
            frozen=made.frozen is not None,
        )
    if not compared.ok:
        raise CheckError(_failure(compared, made.fusions))
    return compared


def _confirm_delegate(made: _Made, seed: int, clock: _Clock) -> CheckResult | None:
    """Compares the result with itself before it was packaged, where the delegate runs its regions.

    Returns None, with a note, where there is no delegate. Raises CheckError when it does not compute the same.
    """
    from litefuse.delegates.runtime import library

    assert made.plain is not None
    try:
        library()
    except RuntimeMissingError as error:
        made.fusions.notes.append(f"the result was not run with the delegate: {error}")
        return None
    with clock.stage("comparing with the delegate"):
        compared = compare(
            made.plain,
            made.model,
            seed=seed,
            cases=_DELEGATE_CASES,
            progress=clock.progress,
            isolated=True,
            delegate=True,
        )
    if not compared.ok:
        raise CheckError("with litefuse's delegate, " + _failure(compared, made.fusions))
    return compared


def _computes_floats(model: Model) -> bool:
    """Whether operators compute floats of floats, rather than converting them at the borders of the model."""
    for subgraph in model.subgraphs:
        floats = {i for i, tensor in enumerate(subgraph.tensors) if tensor.type == TensorType.FLOAT32}
        if any(floats.intersection(op.outputs) and floats.intersection(op.inputs) for op in subgraph.operators):
            return True
    return False


def _weakest(rules: Sequence[Rule], fusions: FusionReport) -> Numerics:
    """The weakest promise that an applied rule gives, in the order in which the classes are defined."""
    used = fusions.counts()
    order = list(Numerics)
    return max((r.numerics for r in rules if r.name in used), key=order.index, default=Numerics.EXACT)


def _failure(compared: CheckResult, fusions: FusionReport) -> str:
    """What to say about a result that does not compute the same."""
    wrong = [o for o in compared.outputs if not o.ok]
    worst = max(wrong, key=lambda o: (o.nonfinite, o.max_rel))
    where = f"output `{worst.output}`" + (f" of signature `{worst.signature}`" if worst.signature else "")
    how = f"by up to {worst.max_abs:.3g}" + (f" ({worst.max_lsb} steps)" if worst.max_lsb is not None else "")
    if worst.nonfinite:
        how += f", and {worst.nonfinite} of its elements are not finite where the original's are, or the reverse"
    others = f"; so do {len(wrong) - 1} more outputs" if len(wrong) > 1 else ""
    return (
        f"the result does not compute the same: {where} differs {how}, where {worst.bound} is allowed{others}. "
        f"No file was written. Applied were {', '.join(fusions.counts()) or 'no rules'}; `--disable` switches one off. "
        f"Please report it"
    )
