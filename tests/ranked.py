"""Several processes that work together, as torchrun would start them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from pacbayes_fl.federation.ranks import Ranks


def together(world: int, folder: Path, work: Callable[[Ranks], Any]) -> list[Any]:
    """Do work in as many forked processes; return what each gives (None of one that is killed), or raise its error."""
    folder.mkdir(exist_ok=True)
    children = [os.fork() or _ranked(rank, world, folder, work) for rank in range(world)]
    for number in children:
        os.waitpid(number, 0)
    return _results(world, folder)


def on_gpus(folder: Path, work: Callable[[Ranks], Any]) -> list[Any]:
    """Do work, a function of a module, in a process for each GPU; they exchange by NCCL, which outlives no fork.

    NCCL from 2.30 on lets two processes meet on one GPU where NCCL_MULTI_RANK_GPU_ENABLE is 1.
    """
    folder.mkdir(exist_ok=True)
    shared = os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"
    world, spawn = max(torch.cuda.device_count(), 2 if shared else 1), multiprocessing.get_context("spawn")
    children = [spawn.Process(target=_ranked, args=(rank, world, folder, work, True)) for rank in range(world)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    return _results(world, folder)


def _results(world: int, folder: Path) -> list[Any]:
    paths = [folder / f"{rank}.pickle" for rank in range(world)]
    results = [pickle.loads(path.read_bytes()) if path.is_file() else None for path in paths]
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def _ranked(rank: int, world: int, folder: Path, work: Callable[[Ranks], Any], gpus: bool = False) -> int:
    result: Any = None
    device, backend = torch.device("cpu"), "gloo"
    if gpus:
        device, backend = torch.device("cuda", rank % torch.cuda.device_count()), "cpu:gloo,cuda:nccl"
    try:
        torch.set_num_threads(1)
        store = FileStore(str(folder / "store"), world)
        if gpus:
            torch.cuda.set_device(device)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60))
        store.set(f"met/{rank}", "")
        store.wait([f"met/{other}" for other in range(world)])  # none may be done while others still connect
        result = work(Ranks(rank, world, device, store))
    except BaseException as error:  # raised in the parent
        result = error
    finally:
        (folder / f"{rank}.pickle").write_bytes(pickle.dumps(result))
        os._exit(0)
