"""The command line. Commands import what they need when they run, so that `inspect` starts fast."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from litefuse import __version__
from litefuse.completion import SHELLS, ModelFile, region_kinds, rule_names, target_names
from litefuse.errors import CheckError, LitefuseError, OutputError, RuntimeMissingError

if TYPE_CHECKING:
    from litefuse.delegates.calibrate.profile import Profile
    from litefuse.report.documents import Document

EXIT_CODES = {
    0: "done",
    1: "failed for another reason",
    2: "wrong usage",
    3: "an input is not a readable .tflite file, or problem",
    4: "the models do not compute the same; `convert` leaves no file then",
    5: "no TFLite runtime is installed, or it cannot do what was asked",
    6: "an output cannot be written",
    7: "the memory that there is does not suffice",
    130: "interrupted",
    141: "the reader of the output went away",
}
_EPILOG = "\b\nExit codes:\n" + "\n".join(f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())
_COMPLETION = """\b
To have it in every new shell:
  bash  echo 'eval "$(litefuse completion bash)"' >> ~/.bashrc
  zsh   echo 'eval "$(litefuse completion zsh)"' >> ~/.zshrc
  fish  litefuse completion fish > ~/.config/fish/completions/litefuse.fish"""
_DEBUG = "LITEFUSE_DEBUG"
_QUIET = "litefuse.quiet"
_PATIENCE = 3600.0  # seconds that one stage of a conversion may take in a process of its own

_MODELS = (".tflite", ".keras", ".h5", ".hdf5")  # of the files that `convert` takes

output_file = click.Path(path_type=Path)
model_file = ModelFile()
any_model = ModelFile(*_MODELS)
json_flag = click.option("--json", "as_json", is_flag=True, help="Print a JSON document (see docs/json.md).")
quiet_flag = click.option(
    "-q",
    "--quiet",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, option, value: context.meta.update({_QUIET: value}),
    help="Print nothing but errors, and what is asked for by name, such as --json.",
)
seed_option = click.option("--seed", default=0, show_default=True, help="Seed of the random inputs.")


class _Amount(click.ParamType[int]):
    """A number of bytes, such as 256K."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from litefuse.arena.memories import parse_bytes

        if isinstance(value, int):
            return value
        try:
            return parse_bytes(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def choice_options(command: Callable[..., int]) -> Callable[..., int]:
    """The options that choose rules."""
    for option in (
        click.option(
            "--batch",
            metavar="N",
            type=click.IntRange(1),
            help="Fix the first dimension of every input where it is unknown, and all that follows from it.",
        ),
        click.option(
            "--input-shape",
            metavar="NAME=D,D,...",
            multiple=True,
            help="Fix the shape of an input, by tensor or signature name; may be given several times.",
        ),
        click.option("--widen-fp16", is_flag=True, help="Turn weights that are stored as float16 into float32."),
        click.option(
            "--level",
            type=click.Choice(["exact", "default", "aggressive"]),
            default="default",
            show_default=True,
            help="How exact the rules must be: `exact` ones only, none that may change integers, or all.",
        ),
        click.option(
            "--keep",
            metavar="TENSOR",
            multiple=True,
            help="Leave this tensor and the operator that computes it as they are; may be given several times.",
        ),
        click.option(
            "--only",
            metavar="RULE",
            multiple=True,
            shell_complete=rule_names,
            help="Use this rule only; may be given several times.",
        ),
        click.option(
            "--disable",
            metavar="RULE",
            multiple=True,
            shell_complete=rule_names,
            help="Do not use this rule; may be given several times.",
        ),
    ):
        command = option(command)
    return command


def _known_target(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Refuses a target that there is not, and says so when a measured one is of another processor."""
    if value is not None and value != "tflm" and not context.resilient_parsing:
        from litefuse.delegates.targets import targets

        if all(value != t.name for t in targets()):
            from litefuse.delegates.calibrate import profile

            if warning := profile.named(value).elsewhere:
                _complain(warning, "warning")
    return value


def region_options(command: Callable[..., int]) -> Callable[..., int]:
    """The options that say which regions are formed for the delegate, and how they are packaged."""
    for option in (
        click.option(
            "--no-region",
            "disable_regions",
            metavar="KIND",
            multiple=True,
            shell_complete=region_kinds,
            help="Form no regions of this kind; may be given several times.",
        ),
        click.option(
            "--package",
            type=click.Choice(["composite", "plan", "custom", "none"]),
            help="How regions are packaged for litefuse's delegate: as a plan in the metadata, which costs nothing "
            "without it; as composites, which are nodes of their own but cost a little then; as custom operators, "
            "which run with the delegate only; or not at all. Default: plan if --target names hardware, else none.",
        ),
        click.option(
            "--target",
            metavar="NAME|FILE",
            callback=_known_target,
            shell_complete=target_names("tflm"),
            help="Prepare the file for TensorFlow Lite Micro (tflm: only operators that it has, and a memory plan that "
            "it follows), or form regions for this hardware: what `litefuse targets` lists, or the file of a profile "
            "(*.json) that `litefuse targets --calibrate` has written.",
        ),
    ):
        command = option(command)
    return command


def main() -> NoReturn:
    """The entry point of the `litefuse` command."""
    # numpy starts a pool of threads for linear algebra, of which there is none here; it would delay the start.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(invoke(sys.argv[1:]))


def invoke(arguments: Sequence[str]) -> int:
    """Runs the command with the given arguments and returns its exit code; errors go to standard error, in one line."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a name that the terminal cannot show is no reason to fail
    try:
        code = litefuse.main(list(arguments), prog_name="litefuse", standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except click.ClickException as error:
        message = error.format_message().rstrip(".")
        if isinstance(error, click.UsageError) and "`litefuse " not in message:
            message += f"; `{error.ctx.command_path if error.ctx else 'litefuse'} --help` explains the usage"
        _complain(message)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        _complain("interrupted")
        return 130
    except (BrokenPipeError, SystemExit) as end:
        if isinstance(end, SystemExit) and end.code == 0:
            return 0  # click has completed a word for a shell
        # click and rich turn a broken pipe into SystemExit. Python would complain again when it flushes at exit.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        message, code = _describe(error)
        _complain(message)
        return code


def _complain(message: str, what: str = "error") -> None:
    """Prints an error or warning in one line, with control characters replaced; no warnings when quiet."""
    if what == "warning" and _quiet():
        return
    line = "".join(c if c.isprintable() else "\ufffd" for c in message.replace("\n", " "))
    print(f"litefuse: {what}: {line}", file=sys.stderr)


def _describe(error: Exception) -> tuple[str, int]:
    """The message of an error for people, and its exit code."""
    if os.environ.get(_DEBUG):
        import traceback

        traceback.print_exception(error)
    if isinstance(error, LitefuseError):
        return str(error), error.exit_code
    if isinstance(error, MemoryError):
        return "out of memory", 1
    return f"internal error, please report it: {type(error).__name__}: {error}; {_DEBUG}=1 shows where", 1


@click.group(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]}, invoke_without_command=True)
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.pass_context
def litefuse(context: click.Context) -> int:
    """Improves finished .tflite models: the same answers from fewer operators and less memory traffic."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        return 2
    return 0


# -- inspect -------------------------------------------------------------------------------------------------------


@litefuse.command()
@click.argument("models", metavar="MODEL...", nargs=-1, required=True, type=model_file)
@click.option(
    "--text",
    "as_text",
    is_flag=True,
    help="Print the graphs as text instead, operator by operator; large constants are abbreviated to a checksum.",
)
@quiet_flag
@json_flag
def inspect(models: tuple[Path, ...], as_text: bool, as_json: bool) -> int:
    """Shows what is in a model.

    Inputs and outputs, operators with their arithmetic and memory traffic, peak memory, types, origin, and everything
    that is wrong with the file. Nothing is run.
    """
    if as_text and as_json:
        raise click.UsageError("--text and --json exclude each other")
    import gc

    gc.disable()  # many objects are made and none thrown away: looking for garbage is a tenth of the time

    from litefuse.report import documents
    from litefuse.report.stats import measure
    from litefuse.schema.model import read
    from litefuse.schema.validate import validate

    if as_text:
        return _print_text(models)

    def one(path: Path) -> Document:
        model = read(path)
        packaged = None
        if any((entry.name or "").startswith("litefuse.") for entry in model.metadata):
            from litefuse.delegates.package import about  # most files hold no regions

            packaged = about(model)
        return documents.inspection(str(path), measure(model), validate(model), packaged)

    return _show("inspect", (_attempt(path, one) for path in models), as_json)


def _print_text(models: Sequence[Path]) -> int:
    """Prints models in the form of `litefuse.graph.text`; returns the worst exit code."""
    from litefuse.graph.text import to_text
    from litefuse.schema.model import read

    worst = 0
    for path in models:
        try:
            text = to_text(read(path))
        except Exception as error:
            message, code = _describe(error)
            _complain(message)
            worst = max(worst, code)
        else:
            click.echo(text if len(models) == 1 else f"# {path}\n{text}", nl=False)
    return worst


# -- convert -------------------------------------------------------------------------------------------------------


@litefuse.command()
@click.argument("models", metavar="MODEL...", nargs=-1, required=True, type=any_model)
@click.option(
    "-o",
    "--output",
    metavar="PATH",
    help="The file to write. With several models, or a slash at the end, a directory to write to, which is made if "
    "need be. The default is MODEL.litefuse.tflite beside the input.",
)
@choice_options
@region_options
@click.option(
    "--arena-budget",
    metavar="SIZE",
    type=_Amount(),
    help="Keep TFLM's memory for intermediates within this, such as 64K: by order, by sharing, then by tiles. "
    "What TFLM keeps for good is not in it. Implies --target tflm.",
)
@click.option("--no-check", is_flag=True, help="Do not compare the result with the original.")
@click.option(
    "--report",
    metavar="HTML",
    help="Write a page that shows what was done (docs/reports.md); of several models, a directory for their pages.",
)
@click.option(
    "--model-explorer",
    "overlays",
    metavar="JSON",
    help="Write node data for Google's Model Explorer: regions, and beside that file cost, traffic and, with --bench, "
    "time (docs/reports.md); of several models, a directory for their files.",
)
@click.option(
    "--bench", is_flag=True, help="Measure the original against the result, with the delegate if there is one."
)
@click.option("--jobs", metavar="N", type=click.IntRange(1), default=1, show_default=True, help="Models at a time.")
@seed_option
@quiet_flag
@json_flag
def convert(
    models: tuple[Path, ...],
    output: str | None,
    target: str | None,
    package: str | None,
    disable_regions: tuple[str, ...],
    arena_budget: int | None,
    no_check: bool,
    report: str | None,
    overlays: str | None,
    bench: bool,
    jobs: int,
    seed: int,
    as_json: bool,
    **choices: Any,
) -> int:
    """Improves models and proves that they compute the same.

    Takes `.tflite` files, and with `litefuse[keras]` installed also `.keras` and `.h5` files and directories of
    SavedModels, which TensorFlow's converter converts first, as float32.

    The original and the result are run on the same inputs before anything is written. A model that the runtime cannot
    run is rewritten by exact rules only. Of several models, each is converted in a process of its own, and one that
    fails does not stop the others; those called *.litefuse.tflite are results already and are left out.
    """
    if len(models) > 1:
        models = tuple(m for m in models if not m.name.endswith(".litefuse.tflite")) or models
    outputs = _outputs(models, output)
    options = _choices(**choices) | {
        "check": not no_check,
        "seed": seed,
        "target": target,
        "package": package,
        "disable_regions": disable_regions,
        "arena_budget": arena_budget,
        "bench": bench,
        "reports": _extra_files(models, outputs, report, ".html"),
        "overlays": _extra_files(models, outputs, overlays, ".json"),
    }
    if len(models) > 1:
        return _show("convert", _in_processes(models, outputs, options, jobs), as_json)

    def one(path: Path) -> Document:
        with _progress() as say:
            return convert_one(path, outputs[path], options, say)

    return _show("convert", (_attempt(path, one) for path in models), as_json)


def _choices(
    disable: Sequence[str],
    only: Sequence[str],
    keep: Sequence[str],
    level: str,
    widen_fp16: bool,
    input_shape: Sequence[str],
    batch: int | None,
) -> dict[str, Any]:
    """The options that choose rules, as `litefuse.convert` takes them; a wrong rule name is a usage error."""
    if disable or only:
        from litefuse.fusions import rules, select

        try:
            select(rules(), disable, only=only)
        except LitefuseError as error:
            raise click.UsageError(str(error)) from None
    shapes = {}
    for value in input_shape:
        name, _, sizes = value.rpartition("=")
        try:
            shapes[name] = tuple(int(size) for size in sizes.split(","))
        except ValueError:
            name = ""
        if not name:
            raise click.UsageError(f"--input-shape wants NAME=1,224,224,3, not {value}")
    return {
        "disable": disable,
        "only": only,
        "keep": keep,
        "level": level,
        "keep_fp16": not widen_fp16,
        "input_shapes": shapes,
        "batch": batch,
    }


def convert_one(path: Path, output: Path, options: dict[str, Any], say: Callable[[str], None]) -> Document:
    """Converts one model; returns its entry in the document. Writes its report, and measures it, if that was asked."""
    from litefuse.convert import convert
    from litefuse.report import documents

    options = dict(options)
    bench, page = options.pop("bench", False), options.pop("reports", {}).get(path)
    overlays = options.pop("overlays", {}).get(path)
    with _as_tflite(path, output, options, say) as (file, batch):
        done = convert(file, output, **options | {"batch": batch}, progress=say)
        measured = _measure(file, output, done.fusions.notes, say) if bench else None
        entry = documents.conversion(str(path), done, measured)
        if page is not None or overlays is not None:
            from litefuse.report import html
            from litefuse.schema import read

            say("drawing the graphs")
            pictures = html.conversion_pictures(read(file), done, entry, target_name=options.get("target"))
        if page is not None:
            say("writing the report")
            html.write_page(html.conversion_page(pictures, done, entry), page)
        if overlays is not None:
            from litefuse.report import model_explorer

            say("writing node data for Model Explorer")
            found = model_explorer.overlays(pictures, entry)
            # What TensorFlow's converter made on the way cannot be opened any more.
            sides = model_explorer.SIDES if file == path else ("result",)
            entry["model_explorer"] = model_explorer.write(found, overlays, sides)
    return entry


@contextmanager
def _as_tflite(
    path: Path, output: Path, options: dict[str, Any], say: Callable[[str], None]
) -> Iterator[tuple[Path, int | None]]:
    """The file itself, or what TensorFlow's converter makes of a Keras file or a SavedModel, and the batch to fix."""
    if path.suffix.lower() != ".tflite":
        from litefuse.keras.sources import is_source, refuse_output

        if is_source(path):
            from litefuse.keras.exporter import stock_file

            refuse_output(path, output)
            with stock_file(
                path, batch=options["batch"], check=options["check"], seed=options["seed"], progress=say
            ) as made:
                yield made
            return
    yield path, options["batch"]


def _measure(a: Path, b: Path, notes: list[str], say: Callable[[str], None]) -> Document | None:
    """The document of measuring B against A, by operators where the delegate runs regions; None with a note if not."""
    from litefuse.bench import bench
    from litefuse.delegates.package import is_packaged
    from litefuse.delegates.runtime import library
    from litefuse.report import documents
    from litefuse.schema import read

    profile = is_packaged(read(b))
    if profile:
        try:
            library()
        except RuntimeMissingError:
            profile = False  # bench says so in its notes
    try:
        return documents.benchmark(bench(a, b, profile=profile, progress=say))
    except LitefuseError as error:
        notes.append(f"not measured: {error}")
        return None


def _extra_files(
    models: Sequence[Path], outputs: dict[Path, Path], where: str | None, extension: str
) -> dict[Path, str]:
    """Where the page, or the node data, of each model goes."""
    if where is None:
        return {}
    from litefuse.report.html import page_files, refuse_page

    pages = dict(zip(models, page_files(models, where, extension), strict=True))
    for page in pages.values():
        refuse_page(page, *models, *outputs.values())
    return pages


def _outputs(models: Sequence[Path], where: str | None) -> dict[Path, Path]:
    """Where the result of each model goes. Makes the directory when that is what ``where`` must be."""
    output = None if where is None else Path(where)
    if where is not None and output is not None and not output.is_dir():
        if len(models) == 1 and not where.endswith(("/", os.sep)):
            return {models[0]: output}
        try:
            output.mkdir(parents=True)
        except OSError as error:
            raise OutputError(f"{output}: cannot be made a directory: {error.strerror or error}") from None
    taken: dict[Path, Path] = {}
    for model in models:
        plain = not model.is_dir() and model.suffix.lower() in _MODELS
        name = (model.stem if plain else model.name) + ".litefuse.tflite"
        target = (output or model.parent) / name
        if target in taken.values():
            raise click.UsageError(f"two of the models would both become {target}")
        taken[model] = target
    return taken


def _in_processes(
    models: Sequence[Path], outputs: dict[Path, Path], options: dict[str, Any], jobs: int
) -> Iterator[Document]:
    """Converts each model in a process of its own; yields the entries in order."""
    from concurrent.futures import ThreadPoolExecutor

    from litefuse.isolation import ChildFailure, in_child
    from litefuse.progress import Step

    def one(path: Path) -> Document:
        try:
            entry: Document = in_child("litefuse.cli:convert_one", path, outputs[path], options, timeout=_PATIENCE)
        except ChildFailure as failure:
            last = f", last seen {failure.last}" if failure.last else ""
            raise LitefuseError(f"the process that converted it {failure.how}{last}") from None
        return entry

    with ThreadPoolExecutor(jobs) as pool, _progress() as say:
        futures = [pool.submit(_attempt, path, one) for path in models]
        try:
            for done, future in enumerate(futures):
                say(Step(f"{done} of {len(models)} models done", done / len(models)))
                entry = future.result()
                say("")
                yield entry
        finally:
            for future in futures:
                future.cancel()


# -- explain -------------------------------------------------------------------------------------------------------


@litefuse.command(short_help="Says what `convert` would do, and why it would not do more.")
@click.argument("models", metavar="MODEL...", nargs=-1, required=True, type=model_file)
@choice_options
@region_options
@quiet_flag
@json_flag
def explain(
    models: tuple[Path, ...],
    target: str | None,
    package: str | None,
    disable_regions: tuple[str, ...],
    as_json: bool,
    **choices: Any,
) -> int:
    """Says what `convert` would do with a model, and why it would not do more.

    Lists every candidate of every rule with its place in the model and, where it is declined, the reason; with
    --target or --package also the regions, with the figures of the cost model. Nothing is run or written.
    """
    from litefuse.convert import explain as explain_model
    from litefuse.report import documents

    options = _choices(**choices) | {"target": target, "package": package, "disable_regions": disable_regions}

    def one(path: Path) -> Document:
        return documents.explanation(str(path), explain_model(path, **options))

    return _show("explain", (_attempt(path, one) for path in models), as_json)


# -- check ---------------------------------------------------------------------------------------------------------


@litefuse.command()
@click.argument("original", metavar="A", type=model_file)
@click.argument("other", metavar="B", type=model_file)
@click.option("--frozen", is_flag=True, help="B may fix dimensions that A leaves open, as `convert --batch` does.")
@click.option(
    "--delegate",
    is_flag=True,
    help="Run B with litefuse's delegate, which takes its packaged regions; the rest runs in reference kernels.",
)
@seed_option
@quiet_flag
@json_flag
def check(original: Path, other: Path, frozen: bool, delegate: bool, seed: int, as_json: bool) -> int:
    """Compares what two models compute on the same inputs.

    Exits with 4 when the difference is beyond what rounding explains, and with 5 when the models cannot be run.
    """
    from litefuse.check import check as compare
    from litefuse.report import documents
    from litefuse.schema.model import read

    read(original)  # so that what cannot be read is said of the right file
    read(other)
    with _progress() as say:
        result = compare(
            original,
            other,
            seed=seed,
            progress=say,
            isolated=True,
            frozen=frozen,
            delegate=delegate,
        )
    content = documents.comparison(result)
    if as_json:
        files = [documents.text(str(path)) for path in (original, other)]
        click.echo(documents.to_json(documents.envelope("check", files=files, **content)))
    elif not _quiet():
        from litefuse.report import terminal

        terminal.comparison(terminal.console(), content)
    if result.skipped:
        return RuntimeMissingError.exit_code
    return 0 if result.ok else CheckError.exit_code


# -- diff ----------------------------------------------------------------------------------------------------------


@litefuse.command("diff", short_help="Shows how two models differ.")
@click.argument("original", metavar="A", type=model_file)
@click.argument("other", metavar="B", type=model_file)
@click.option(
    "--report", "page", metavar="PATH", type=output_file, help="Write a page that shows it (docs/reports.md)."
)
@click.option(
    "--target",
    metavar="NAME|FILE",
    callback=_known_target,
    shell_complete=target_names(),
    help="The hardware for the estimates of time, traffic and energy: what `litefuse targets` lists, or a file.",
)
@click.option("--no-check", is_flag=True, help="Do not run the two and compare their outputs.")
@click.option("--bench", is_flag=True, help="Measure A against B, with the delegate if there is one.")
@seed_option
@quiet_flag
@json_flag
def diff_command(
    original: Path,
    other: Path,
    page: Path | None,
    target: str | None,
    no_check: bool,
    bench: bool,
    seed: int,
    as_json: bool,
) -> int:
    """Shows how two models differ: operators, memory, traffic, regions, interfaces, and what they compute.

    Any two files will do. Operators are paired by the names of what they compute. Outputs that differ are shown and
    are no failure: `litefuse check` is for that.
    """
    from litefuse.report import documents, html
    from litefuse.schema import read

    if page is not None:
        html.refuse_page(page, original, other)
    if target in ("tflm", "cortex-m"):
        raise click.UsageError("microcontrollers have no DRAM, so that there is nothing to estimate for them")
    from litefuse.delegates.targets import target as profile_of

    chosen = None if target is None else profile_of(target)
    models = read(original), read(other)
    notes: list[str] = []
    compared = measured = None
    with _progress() as say:
        if not no_check:
            compared = _compared(original, other, seed, notes, say)
        if bench:
            measured = _measure(original, other, notes, say)
        say("comparing graphs")
        pictures = html.compare(*models, profile=chosen)
        files = str(original), str(other)
        content = html.difference(files, pictures, chosen=chosen, check=compared, bench=measured, notes=notes)
        if page is not None:
            html.write_page(html.difference_page(content, pictures, chosen), page)
    if as_json:
        click.echo(documents.to_json(documents.envelope("diff", **content)))
    elif not _quiet():
        from litefuse.report import terminal

        terminal.difference(terminal.console(), content)
    return 0


def _compared(a: Path, b: Path, seed: int, notes: list[str], say: Callable[[str], None]) -> Document | None:
    """The document of comparing what two models compute; None, with a note, where they cannot be compared."""
    from litefuse.check import check as compare
    from litefuse.report import documents

    try:
        return documents.comparison(compare(a, b, seed=seed, progress=say, isolated=True, frozen=True))
    except (CheckError, RuntimeMissingError) as error:
        notes.append(f"the outputs were not compared: {error}")
        return None


# -- unfuse --------------------------------------------------------------------------------------------------------


@litefuse.command()
@click.argument("model", metavar="MODEL", type=model_file)
@click.option(
    "-o", "--output", metavar="PATH", type=output_file, help="The file to write. Default: MODEL.unfused.tflite."
)
@quiet_flag
@json_flag
def unfuse(model: Path, output: Path | None, as_json: bool) -> int:
    """Gives a packaged model its original operators back.

    Composites and custom operators of litefuse are replaced by what they stand for, and plans are dropped. What rules
    have rewritten stays so.
    """
    from litefuse.convert import refuse_to_write
    from litefuse.delegates.package import unfuse as take_apart
    from litefuse.report import documents
    from litefuse.schema import deepcopy
    from litefuse.schema.model import read, write

    output = output or model.with_suffix(".unfused.tflite")
    original = read(model)
    refuse_to_write(original, output)
    result = deepcopy(original)
    regions = take_apart(result)
    write(result, output)
    content = {"file": documents.text(str(model)), "output": documents.text(str(output)), "regions": regions}
    if as_json:
        click.echo(documents.to_json(documents.envelope("unfuse", **content)))
    elif not _quiet():
        from litefuse.report import terminal

        terminal.taken_apart(terminal.console(), content)
    return 0


# -- plan ----------------------------------------------------------------------------------------------------------


@litefuse.command()
@click.argument("models", metavar="MODEL|PROBLEM.csv...", nargs=-1, required=True, type=ModelFile(".tflite", ".csv"))
@click.option(
    "--runtime",
    type=click.Choice(["tflm", "tflite", "delegate"]),
    default="tflm",
    show_default=True,
    help="Whose rules apply: those of TensorFlow Lite Micro, of TFLite's CPU arena, or of litefuse's delegate.",
)
@click.option("--alignment", metavar="N", type=click.IntRange(1), help="Align to N bytes instead of the runtime's own.")
@click.option("--arena-budget", metavar="SIZE", type=_Amount(), help="Fail if the arena takes more, such as 256K.")
@click.option(
    "--memory",
    metavar="NAME=SIZE[:COST],...",
    help="Distribute the tensors over several memories so that the bytes moved cost least, such as "
    "sram=320K,psram=8M:slow; a cost is relative, `slow` is 4.",
)
@click.option("--no-reorder", is_flag=True, help="Keep the order of operators.")
@click.option("--no-in-place", is_flag=True, help="Let no tensors share bytes.")
@click.option("--keep-inputs", is_flag=True, help="Let no operator write over an input of the model, as TFLM's may.")
@click.option("--write", is_flag=True, help="Write the model with its plan, which TFLM follows; where to, says -o.")
@click.option(
    "-o", "--output", metavar="PATH", type=output_file, help="The file to write. Default: MODEL.planned.tflite."
)
@click.option("--csv", "csv_file", metavar="PATH", type=output_file, help="Write the packing problem and its solution.")
@click.option("--plot", metavar="PATH", type=output_file, help="Draw the arena, as .png, .svg or .pdf.")
@click.option("--capacity", metavar="SIZE", type=_Amount(), help="Of a problem: whether it fits into so many bytes.")
@click.option("--seconds", metavar="S", type=click.FloatRange(0.1), default=10.0, show_default=True, help="Time limit.")
@quiet_flag
@json_flag
def plan(models: tuple[Path, ...], csv_file: Path | None, plot: Path | None, as_json: bool, **options: Any) -> int:
    """Plans the memory of a model's intermediates, and proves the plan.

    Shows the peak, how far it is from the least that is possible, what is live at the peak, and what would lower it.
    Problems in minimalloc's CSV format (id,lower,upper,size) are packed. Fails with 7 if a budget is not met.
    """
    writes = [options["output"] or (True if options["write"] else None), csv_file, plot]
    if len(models) > 1 and any(w is not None for w in writes):
        raise click.UsageError("--write, -o, --csv and --plot take one model at a time")
    if options["output"] is not None and not options["write"]:
        raise click.UsageError("-o needs --write")
    try:
        from litefuse.arena.memories import parse_memories

        memories = parse_memories(options["memory"]) if options["memory"] else []
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    given = click.get_current_context().get_parameter_source

    def one(path: Path) -> Document:
        if path.suffix.lower() == ".csv":
            kept = {"arena_budget", "memory", "write", "runtime", "no_reorder", "no_in_place", "keep_inputs"}
            odd = [n for n in sorted(kept) if given(n) is not click.core.ParameterSource.DEFAULT]
            if odd or plot:
                raise click.UsageError(f"--{(odd or ['plot'])[0].replace('_', '-')} is for models, {path} is a problem")
            return _pack(path, options, csv_file)
        if options["capacity"] is not None:
            raise click.UsageError("--capacity is for problems (.csv); models have --arena-budget")
        from litefuse.plan import plan as plan_model
        from litefuse.report import documents

        output = options["output"] or path.with_suffix(".planned.tflite")
        with _progress() as say:
            done = plan_model(
                path,
                output if options["write"] else None,
                runtime=options["runtime"],
                alignment=options["alignment"],
                reorder=not options["no_reorder"],
                in_place=not options["no_in_place"],
                overwrite_inputs=False if options["keep_inputs"] else None,
                budget=options["arena_budget"],
                memories=memories,
                csv=csv_file,
                plot=plot,
                seconds=options["seconds"],
                progress=say,
            )
        return documents.memory_plan(str(path), done)

    return _show("plan", (_attempt(path, one) for path in models), as_json)


def _pack(path: Path, options: dict[str, Any], output: Path | None) -> Document:
    """Packs a problem; returns its entry in the document."""
    from litefuse.arena.packing import pack
    from litefuse.arena.problem import read_csv, write_csv
    from litefuse.errors import BudgetError
    from litefuse.report import documents

    problem = read_csv(path)
    capacity = options["capacity"]
    alignment = options["alignment"] or 1
    found = pack(problem, alignment=alignment, capacity=capacity, seconds=options["seconds"])
    if capacity is not None and not found.fits(capacity):
        proof = "no packing does" if found.lower_bound > capacity else "none was found in the time"
        raise BudgetError(
            f"the buffers do not fit into {capacity:,} bytes: {proof}; {found.lower_bound:,} are needed at least, and "
            f"{found.peak:,} suffice"
        )
    if output is not None:
        write_csv(problem, output, found.offsets)
    outputs = {} if output is None else {"csv": str(output)}
    return documents.packing(str(path), len(problem.buffers), found, capacity, outputs)


# -- bench ---------------------------------------------------------------------------------------------------------


@litefuse.command(short_help="Measures how fast a model runs and starts, and its memory.")
@click.argument("model", metavar="A", type=model_file)
@click.option("--against", metavar="B", type=model_file, help="Compare A in the stock runtime with this file.")
@click.option("--threads", metavar="N", type=click.IntRange(1), default=1, show_default=True, help="Threads of each.")
@click.option("--runs", metavar="N", type=click.IntRange(1), help="Rounds, in each of which everything runs in turn.")
@click.option(
    "--seconds",
    metavar="S",
    type=click.FloatRange(0, min_open=True),
    help="How long to go on; five rounds are made at least, unless --runs says less. Without both: 5.",
)
@click.option(
    "--warmup", metavar="N", type=click.IntRange(1), default=3, show_default=True, help="Rounds before these."
)
@click.option(
    "--delegate/--no-delegate",
    default=None,
    help="Run litefuse's regions with its delegate, or fail; --no-delegate leaves them to the runtime. By default, the "
    "delegate is used where there is one.",
)
@click.option("--profile", is_flag=True, help="Show the time of each region, and of each original operator in it.")
@click.option(
    "--cpu",
    "pinned",
    metavar="N",
    type=click.IntRange(0),
    multiple=True,
    help="Bind all to this processor; may be given several times.",
)
@seed_option
@quiet_flag
@json_flag
def bench(model: Path, against: Path | None, runs: int | None, as_json: bool, **options: Any) -> int:
    """Measures how fast a model runs and starts, and how much memory it takes.

    A file with litefuse's regions is run by the stock runtime and with litefuse's delegate, one after the other in
    turn. With --against, A in the stock runtime is compared with B in both. A file without regions is run with the
    runtime's builtin kernels and with XNNPACK. Latencies are of one process, start and memory of a process each.
    Exits with 5 when one of them cannot be run.
    """
    from litefuse.bench import bench as measure
    from litefuse.report import documents

    with _progress() as say:
        result = measure(model, against, rounds=runs, progress=say, **options)
    content = documents.benchmark(result)
    if as_json:
        click.echo(documents.to_json(documents.envelope("bench", **content)))
    elif not _quiet():
        from litefuse.report import terminal

        terminal.benchmark(terminal.console(), content)
    failures = [c for c in result.contenders if c.failure is not None]
    for one in failures:
        _complain(f"{one.file}: {one.name} was not run: {one.failure}")
    return RuntimeMissingError.exit_code if failures else 0


# -- targets -------------------------------------------------------------------------------------------------------


@litefuse.command("targets", short_help="Lists hardware, shows one profile, or measures this machine.")
@click.argument("name", metavar="[NAME|FILE]", required=False, shell_complete=target_names())
@click.option(
    "--calibrate",
    is_flag=True,
    help="Measure this machine, and save the profile under NAME (default: local), by which --target finds it.",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=output_file,
    help="With --calibrate: write the profile to this file (*.json) instead, which --target takes too.",
)
@click.option(
    "--budget",
    "seconds",
    metavar="S",
    type=click.FloatRange(0, min_open=True),
    default=60.0,
    show_default=True,
    help="With --calibrate: how many seconds to measure.",
)
@click.option(
    "--cpu",
    metavar="N",
    type=click.IntRange(0),
    help="With --calibrate: the processor to measure. Default: the last one, a large core where there are two kinds.",
)
@quiet_flag
@json_flag
def targets_command(
    name: str | None, calibrate: bool, output: Path | None, seconds: float, cpu: int | None, as_json: bool
) -> int:
    """Lists the hardware for which regions can be formed, shows one profile in full, or measures this machine.

    The figures are those that the cost model works with: caches, bandwidth to memory, and arithmetic of one core; in
    full also overheads, and what kernels reach. --calibrate measures them with the runtime that is installed and the
    delegate, which takes about a minute; see docs/targets.md.
    """
    given = click.get_current_context().get_parameter_source
    odd = [o for o in ("output", "seconds", "cpu") if given(o) is not click.core.ParameterSource.DEFAULT]
    if odd and not calibrate:
        raise click.UsageError(f"--{odd[0].replace('seconds', 'budget')} needs --calibrate")
    from litefuse.delegates.targets import DEFAULT, target, targets
    from litefuse.report import documents

    builtin = name in [t.name for t in targets()]
    if name is None and not calibrate:
        return _list_targets(as_json)
    from litefuse.delegates.calibrate import profile, show

    found = None
    if calibrate:
        found = _calibrate(name, output, seconds, cpu)
    elif not builtin:
        assert name is not None
        found = profile.named(name)
        if found.elsewhere:
            _complain(found.elsewhere, "warning")
    chosen = found.target if found is not None else target(name or DEFAULT)
    content = show.document(chosen, found)
    if as_json:
        entries = [documents.target(chosen, DEFAULT)]
        click.echo(documents.to_json(documents.envelope("targets", targets=entries, profile=content)))
        return 0
    if not _quiet():
        from litefuse.report import terminal

        show.show(terminal.console(), content)
    return 0


def _list_targets(as_json: bool) -> int:
    """Lists the built-in targets and the saved ones."""
    from litefuse.delegates.calibrate import profile
    from litefuse.delegates.targets import DEFAULT, targets
    from litefuse.report import documents

    saved, problems = profile.saved()
    entries = [documents.target(t, DEFAULT) for t in (*targets(), *(p.target for p in saved))]
    for problem in problems:
        _complain(problem, "warning")
    if as_json:
        click.echo(documents.to_json(documents.envelope("targets", targets=entries, profile=None)))
        return 0
    if not _quiet():
        from litefuse.report import terminal

        terminal.targets(terminal.console(), entries)
    return 0


def _calibrate(name: str | None, output: Path | None, seconds: float, cpu: int | None) -> Profile:
    """Measures this machine, and writes the profile."""
    from litefuse.delegates.calibrate import profile
    from litefuse.delegates.calibrate.measure import calibrate

    if output is not None and not profile.is_path(str(output)):
        raise click.UsageError(f"{output} has to end in .json, so that --target takes it for a file")
    if name is None and output is not None and profile.is_name(output.stem):
        name = output.stem
    name = name or profile.USUAL
    place = profile.place(name)  # a name that cannot be is better known before
    with _progress() as say:
        found = calibrate(name, seconds=seconds, cpu=cpu, progress=say)
    if output is None:
        place = profile.save(found)
    else:
        place = output
        profile.write(found, place)
    return dataclasses.replace(found, path=place)


# -- rules ---------------------------------------------------------------------------------------------------------


@litefuse.command("rules")
@click.argument("name", metavar="[RULE]", required=False, shell_complete=rule_names)
@json_flag
def rules_command(name: str | None, as_json: bool) -> int:
    """Lists the rules, or describes one of them."""
    from litefuse.fusions import rules
    from litefuse.report import documents

    entries = [documents.rule(r) for r in rules() if name in (None, r.name)]
    if name is not None and not entries:
        raise click.UsageError(f"there is no rule `{name}`; `litefuse rules` lists them all")
    if as_json:
        click.echo(documents.to_json(documents.envelope("rules", rules=entries)))
        return 0
    from litefuse.report import terminal

    out = terminal.console()
    if name is None:
        terminal.rules(out, entries)
    else:
        terminal.rule(out, entries[0])
    return 0


# -- completion ----------------------------------------------------------------------------------------------------


@litefuse.command("completion", epilog=_COMPLETION)
@click.argument("shell", type=click.Choice(SHELLS))
def completion_command(shell: str) -> int:
    """Prints what makes a shell complete commands, options, models, targets, rules and kinds of regions."""
    from litefuse.completion import script

    click.echo(script(litefuse, shell))
    return 0


# -- what the commands share ---------------------------------------------------------------------------------------


def _attempt(path: Path, one: Callable[[Path], Document]) -> Document:
    """The entry of a model in a document: what ``one`` makes of it, or the error."""
    try:
        return one(path)
    except click.UsageError:
        raise
    except Exception as error:
        from litefuse.report import documents

        message, code = _describe(error)
        if not message.startswith(str(path)):
            message = f"{path}: {message}"
        return documents.failure(str(path), message, code)


def _show(command: str, entries: Iterable[Document], as_json: bool) -> int:
    """Prints the entries of several models as they come and returns the worst exit code."""
    from litefuse.report import documents

    worst = 0
    shown = []
    for entry in entries:
        error = entry.get("error")
        if error:
            _complain(error["message"])
            worst = max(worst, error["exit_code"])
        if as_json:
            shown.append(entry)
        elif not error and not _quiet():
            from litefuse.report import terminal

            out = terminal.console()
            if shown:
                out.print("\n")
            shown.append(entry)
            shows = {
                "inspect": terminal.inspection,
                "convert": terminal.conversion,
                "explain": terminal.explanation,
                "plan": terminal.memory_plan,
            }
            shows[command](out, entry)
    if as_json:
        click.echo(documents.to_json(documents.envelope(command, models=shown)))
    return worst


def _quiet() -> bool:
    """Whether the command was given --quiet."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_QUIET))


def _progress() -> AbstractContextManager[Callable[[str], None]]:
    """A function that shows what is going on, in one line of the terminal; silent where there is none."""
    from litefuse.progress import shown

    return shown(_quiet())


if __name__ == "__main__":
    main()
