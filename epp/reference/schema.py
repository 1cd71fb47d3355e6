"""``docs/config.schema.json``: JSON Schema of a configuration, for editors and pipelines.

Parameters are checked by plugin type. Other types than the built-in ones pass, since they may be
plugins of one's own; `epp check` knows which there are.

**Source:** https://json-schema.org/draft/2020-12/schema.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from epp.catalog import NOT_YET
from epp.config.schema import API_VERSION, KIND, OLD_API_VERSION, Config
from epp.reference.comments import field_comments, markdown, paragraphs
from epp.reference.groups import BY_TYPE
from epp.reference.parameters import is_struct, structs_in

DIALECT = "https://json-schema.org/draft/2020-12/schema"
REFUSED = "Refused: "  #: how the docstring of a plugin begins that cannot be built

ABOUT = "Configuration of epp, in today's spelling; older spellings are translated when it is read."

Schema = dict[str, Any]


def page() -> str:
    """Return the text of ``docs/config.schema.json``."""
    return json.dumps(config_schema(), indent=1, ensure_ascii=False) + "\n"


def config_schema() -> Schema:
    """Return the schema."""
    params = {type_: each.Params for type_, each in BY_TYPE.items() if not is_refused(each)}
    structs = [each for hint in (Config, *params.values()) for each in structs_in(hint)]
    hints = [*structs, *params.values()]
    schemas, defs = msgspec.json.schema_components(hints, ref_template="#/$defs/{name}")
    for struct, schema in zip(structs, schemas, strict=False):
        _describe(defs[schema["$ref"].removeprefix("#/$defs/")], struct)
    by_type = dict(zip(params, schemas[len(structs) :], strict=True))
    _narrow(defs, by_type, {type_: _needed(hint) for type_, hint in params.items()})
    about = {"$schema": DIALECT, "title": KIND, "description": ABOUT}
    return {**about, **schemas[0], "$defs": defs}


def refused() -> list[str]:
    """Return the types of the Go router that no configuration may name."""
    not_yet = [type_ for type_, why in NOT_YET.items() if why.policy == "refused"]
    return sorted([*not_yet, *(type_ for type_, each in BY_TYPE.items() if is_refused(each))])


def is_refused(class_: Any) -> bool:
    """Say whether a built-in plugin is there only to say why it is not."""
    return paragraphs(class_)[0].startswith(REFUSED)


def _needed(params: Any) -> bool:
    return is_struct(params) and any(field.required for field in msgspec.structs.fields(params))


def _describe(schema: Schema, struct: type) -> None:
    """Add what the fields' comments say; drop what a reader cannot use."""
    comments = field_comments(struct)
    for field in msgspec.structs.fields(struct):
        if text := comments.get(field.name):
            schema["properties"][field.encode_name]["description"] = markdown(text)
    if schema.get("title") == "Params":
        del schema["title"]


def _narrow(defs: Schema, by_type: Schema, needed: dict[str, bool]) -> None:
    """Say which types there are, and which parameters each takes."""
    top, spec = defs["Config"]["properties"], defs["PluginSpec"]
    top["apiVersion"] = {"enum": [API_VERSION, OLD_API_VERSION]}
    top["kind"] = {"const": KIND}
    known = {
        "enum": sorted(by_type),
        "enumDescriptions": [paragraphs(BY_TYPE[type_])[0] for type_ in sorted(by_type)],
    }
    own = spec["properties"]["type"]
    spec["properties"]["type"] = {"anyOf": [known, {**own, "not": {"enum": refused()}}]}
    spec["allOf"] = [
        _only_if(type_, {"anyOf": [by_type[type_], {"type": "null"}]}, needed=needed[type_])
        for type_ in sorted(by_type)
    ]


def _only_if(type_: str, parameters: Schema, *, needed: bool) -> Schema:
    then: Schema = {"properties": {"parameters": parameters}}
    if needed:
        then = {"properties": {"parameters": parameters["anyOf"][0]}, "required": ["parameters"]}
    return {"if": {"properties": {"type": {"const": type_}}, "required": ["type"]}, "then": then}
