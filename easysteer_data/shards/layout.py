"""Names of files and keys inside a run folder. Knows where things lie, not what they hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from easysteer_data.types import Stream

RUN = "run.json"
MANIFEST = "manifest.json"
JOURNAL = "journal.jsonl"
STATISTICS = "statistics.safetensors"
MEASURED = "measured.jsonl"  # what each shard took; whoever captures may keep it beside the run


def layer_folder(stream: Stream, layer_id: int) -> str:
    """Folder of one layer: a plain WebDataset."""
    return f"{stream}/layer-{layer_id:03d}"


def tar_name(stream: Stream, layer_id: int, number: int) -> str:
    """Rows of one layer of one shard."""
    return f"{layer_folder(stream, layer_id)}/shard-{number:06d}.tar"


def prompts_name(number: int) -> str:
    """Prompt table of one shard."""
    return f"prompts/shard-{number:06d}.parquet"


def index_name(number: int) -> str:
    """Where each tensor of one shard lies."""
    return f"index/shard-{number:06d}.json"


def statistics_name(number: int) -> str:
    """Running statistics of one shard."""
    return f"statistics/shard-{number:06d}.safetensors"


def pack_key(number: int, pack: int) -> str:
    """WebDataset key of a pack, the same in every layer; no dots, WebDataset would split the key there."""
    return f"s{number:06d}-p{pack:06d}"


def shard_names(layers: Mapping[Stream, Sequence[int]], number: int) -> tuple[str, ...]:
    """Every file that one shard consists of, relative to the run folder, in the order it is written.

    `layers` are those whose rows are stored; without any there are no tars, and no index of them.
    """
    tars = (tar_name(stream, layer_id, number) for stream in layers for layer_id in layers[stream])
    index = (index_name(number),) if layers else ()
    return (*tars, prompts_name(number), statistics_name(number), *index)


def folders(layers: Mapping[Stream, Sequence[int]]) -> Iterable[str]:
    """Every folder of a run whose rows of `layers` are stored, parents before children."""
    for stream in layers:
        yield stream
        yield from (layer_folder(stream, layer_id) for layer_id in layers[stream])
    yield from ("prompts", "statistics")
    if layers:
        yield "index"
