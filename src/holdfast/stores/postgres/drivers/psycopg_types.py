"""How psycopg reads and writes values here: as asyncpg does, whatever the caller has registered."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from psycopg import DataError
from psycopg.adapt import Dumper, Loader, PyFormat
from psycopg.pq import Format
from psycopg.types.array import ListBinaryDumper, ListDumper
from psycopg.types.datetime import DateBinaryLoader, TimestampBinaryLoader
from psycopg.types.string import TextBinaryLoader

if TYPE_CHECKING:
    from psycopg.abc import Buffer
    from psycopg.adapt import AdaptersMap
    from psycopg.types.array import BaseListDumper

_UNKNOWN_OID = 0
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_INFINITY = 2**63 - 1
_unpack_micros = struct.Struct("!q").unpack
_LAST, _FIRST = b"\x7f" + b"\xff" * 7, b"\x80" + b"\x00" * 7
"""How infinity and minus infinity arrive; of a date the half of it."""
_TIMESTAMPS = {_LAST: datetime.max, _FIRST: datetime.min}
_DATES = {_LAST[:4]: date.max, _FIRST[:4]: date.min}


def adapt(adapters: AdaptersMap) -> None:
    """Prepare one cursor's own map; its connection and the process keep theirs.

    Results arrive in binary, so neither DateStyle nor the session's time zone matters. An array of
    an enum must be cast to text[]: psycopg does not know the enum's type.
    """
    adapters.register_dumper(int, _IntDumper)
    adapters.register_dumper(list, _ListDumper)
    adapters.register_loader(_UNKNOWN_OID, TextBinaryLoader)
    adapters.register_loader("json", TextBinaryLoader)
    adapters.register_loader("jsonb", _JsonbTextLoader)
    adapters.register_loader("timestamptz", _UtcLoader)
    adapters.register_loader("timestamp", _TimestampLoader)
    adapters.register_loader("date", _DateLoader)


class _IntDumper(Dumper):
    """Leaves the type to the statement.

    psycopg picks smallint, integer or bigint by value, and each mixture of the three would be
    prepared as a statement of its own.
    """

    def dump(self, obj: int) -> bytes:
        return b"%d" % obj


class _ListDumper(ListDumper):
    """Sends arrays of bytes in binary: as text each payload is escaped, doubled and parsed."""

    def upgrade(self, obj: list[Any], format: PyFormat) -> BaseListDumper:
        if isinstance(next((item for item in obj if item is not None), None), bytes):
            return ListBinaryDumper(self.cls, self._tx).upgrade(obj, PyFormat.BINARY)
        return super().upgrade(obj, format)


class _JsonbTextLoader(TextBinaryLoader):
    def load(self, data: Buffer) -> bytes | str:
        # The first byte is the version of the format.
        return super().load(bytes(data)[1:])


class _UtcLoader(Loader):
    format = Format.BINARY

    def load(self, data: Buffer) -> datetime:
        (micros,) = _unpack_micros(data)
        if abs(micros) >= _INFINITY:
            return (datetime.max if micros > 0 else datetime.min).replace(tzinfo=UTC)
        try:
            return _EPOCH + timedelta(microseconds=micros)
        except OverflowError:
            raise DataError("an instant outside the years 1 to 9999") from None


class _TimestampLoader(TimestampBinaryLoader):
    def load(self, data: Buffer) -> datetime:
        return _TIMESTAMPS.get(bytes(data)) or super().load(data)


class _DateLoader(DateBinaryLoader):
    def load(self, data: Buffer) -> date:
        return _DATES.get(bytes(data)) or super().load(data)
