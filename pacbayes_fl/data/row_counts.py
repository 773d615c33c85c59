"""How many rows a client counts as in what is common to all clients: repeats of its rows do not outvote the others."""

from __future__ import annotations

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.client_blocks import by_size
from pacbayes_fl.data.twins import distinct


def counted(size: Tensor, different: Tensor) -> Tensor:
    """Count the rows of clients, repeats of one row only up to the client in the middle.

    w_k = min(m_k, max(u_k, median of the m_k over clients with rows)),  u_k the rows that differ from one another

    It is m_k where no row stands twice. A client whose only row stands often counts as the median client at most; rows
    that are copies but for jitter are different ones.

    Args:
        size: m_k [K].
        different: u_k [K]; not looked at where m_k is no more than the median.

    Returns:
        w_k [K], float64.
    """
    size, different = size.double(), different.double()
    return torch.minimum(size, torch.maximum(different, _usual(size)))


def different_rows(batch: ClientBatch) -> Tensor:
    """Count the rows of each client that differ from one another to the bit.

    Args:
        batch: x [K, N, *feature], y [K, N].

    Returns:
        u_k [K], int64, on the CPU.
    """
    return torch.tensor([_different(batch, k) for k in range(batch.clients)])


def counted_rows(batch: ClientBatch) -> Tensor:
    """Count the rows of clients as `counted`.

    Args:
        batch: rows of all clients, x [K, N, *feature], y [K, N].

    Returns:
        w_k [K], float64, on the device of the rows.
    """
    size = batch.size.double()
    different = size.cpu().clone()
    for k in (size > _usual(size)).nonzero().flatten().tolist():  # of the others it changes nothing
        different[k] = _different(batch, k)
    return counted(size, different.to(size.device))


def one_row(batch: ClientBatch) -> Tensor:
    """Say who has nothing but one row, however often it stands there.

    Args:
        batch: x [K, N, *feature], y [K, N].

    Returns:
        [K] bool; False of clients without rows.

    Example:
        >>> import torch
        >>> from pacbayes_fl import ClientBatch
        >>> from pacbayes_fl.data.row_counts import one_row
        >>> x = torch.tensor([[1.0], [1.0], [2.0]])
        >>> one_row(ClientBatch.pad([(x[:2], x[:2, 0]), (x, x[:, 0]), (x[:1], x[:1, 0])])).tolist()
        [True, False, True]
    """
    return by_size(batch, _one_row)[0]


def _one_row(batch: ClientBatch) -> list[Tensor]:
    first = batch.mask.int().argmax(1)
    each = torch.arange(batch.clients, device=first.device)
    values = torch.cat((batch.x.flatten(2), batch.y.unsqueeze(2).to(batch.x)), 2)
    same = (values == values[each, first].unsqueeze(1)).all(2)
    return [(same | ~batch.mask).all(1) & batch.mask.any(1)]


def _usual(size: Tensor) -> Tensor:
    known = size[size > 0]
    return known.median() if len(known) else size.new_zeros(())


def _different(batch: ClientBatch, k: int) -> int:
    mask = batch.mask[k]
    x, y = batch.x[k][mask].flatten(1).cpu(), batch.y[k][mask].cpu()
    return distinct(torch.cat((x, y.to(x.dtype).unsqueeze(-1)), 1).numpy())
