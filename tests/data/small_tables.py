"""Small tables of users."""

from __future__ import annotations

from pathlib import Path

CSV = """client,sun,y,wind,split,group
a,1.0,10,0.5,train,existing
b,2.0,20,0.25,train,existing
a,3.0,30,-1,test,existing
late,4e0,40,1e-3,test,new
b,5.0,50,+6,test,existing
a,6.0,60,7,train,existing
"""
LABELLED = "client,x,y\na,0.5,0\na,1.5,2\nb,2.5,1\nb,3.5,0\n"


def write(folder: Path, text: str, name: str = "table.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


def without(text: str, *dropped: str) -> str:
    lines = [line.split(",") for line in text.splitlines()]
    kept = [i for i, name in enumerate(lines[0]) if name not in dropped]
    return "".join(",".join(line[i] for i in kept) + "\n" for line in lines)
