"""Tables in a catalog: their options are stored in their schema, because Spark passes a Python source nothing else.

`CREATE TABLE ... USING tailrace OPTIONS (...)` requests a schema from the source, with the options. A later SELECT
passes it that schema, and no options at all. So the options are written into the metadata of the first column.
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
# The options of a table appear twice among its properties: under their own names, and with this prefix.
OPTION_PREFIX = "option."
_TOPICS = ("subscribe", "subscribePattern", "assign")


def is_table(options: Mapping[str, str]) -> bool:
    """Return whether a table is being created: only then Spark passes its owner and provider."""
    return options.get("provider") is not None and options.get("owner") is not None


def table_options(options: Mapping[str, str]) -> MutableMapping[str, str]:
    """Return the options among the properties of a table; other properties are for people and catalogs."""
    found = CaseInsensitiveDict()
    for name in options:
        if name.lower().startswith(OPTION_PREFIX):
            found[name[len(OPTION_PREFIX) :]] = options[name]
    path = options.get("path")
    if path is not None:
        # The LOCATION of a table.
        found["path"] = path
    return found


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the schema with the options of a table stored in it."""
    first, *others = schema.fields
    stored = {METADATA_KEY: json.dumps(dict(options))}
    return StructType([StructField(first.name, first.dataType, first.nullable, stored), *others])


def options_of(options: Mapping[str, str], schema: StructType) -> Mapping[str, str]:
    """Return the options of a query: its own, and if it names no topics those of the table that it reads."""
    if any(options.get(name) is not None for name in _TOPICS):
        return options
    for field in schema.fields:
        stored = (field.metadata or {}).get(METADATA_KEY)
        if stored is not None:
            found = CaseInsensitiveDict(json.loads(stored))
            found.update(options)
            return found
    return options
