"""Tables in a catalog: their options travel in their schema, because Spark hands them to a Python source no other way.

`CREATE TABLE ... USING tailrace OPTIONS (...)` asks the source for a schema, with the options. A later SELECT gives it
that schema back, and no options at all. So the options are written into the metadata of the first column.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructField, StructType

if TYPE_CHECKING:
    from collections.abc import MutableMapping

METADATA_KEY = "tailrace.arguments"
# A table's options come twice: as they are among its properties, and with this in front.
OPTION_PREFIX = "option."
_TOPICS = ("subscribe", "subscribePattern", "assign")


def is_table(options: Mapping[str, str]) -> bool:
    """Whether a table is being created: Spark says for whom and with which format."""
    return options.get("provider") is not None and options.get("owner") is not None


def table_options(options: Mapping[str, str]) -> MutableMapping[str, str]:
    """The options among the properties of a table: all others are for people and catalogs."""
    found = CaseInsensitiveDict()
    for name in options:
        if name.lower().startswith(OPTION_PREFIX):
            found[name[len(OPTION_PREFIX) :]] = options[name]
    path = options.get("path")
    if path is not None:
        # A table's LOCATION.
        found["path"] = path
    return found


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The same schema, with the options of a table in it."""
    first, *others = schema.fields
    stored = {METADATA_KEY: json.dumps(dict(options))}
    return StructType([StructField(first.name, first.dataType, first.nullable, stored), *others])


def options_of(options: Mapping[str, str], schema: StructType) -> Mapping[str, str]:
    """The options of a query: its own, and where it names no topics those of the table that it reads."""
    if any(options.get(name) is not None for name in _TOPICS):
        return options
    for field in schema.fields:
        stored = (field.metadata or {}).get(METADATA_KEY)
        if stored is not None:
            found = CaseInsensitiveDict(json.loads(stored))
            found.update(options)
            return found
    return options
