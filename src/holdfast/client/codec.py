"""A function's signature -> its payload and back: JSON objects by parameter name, through Pydantic.

The only module that imports Pydantic.
"""

from __future__ import annotations

import contextlib
import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.errors import InvalidArguments, InvalidPayload, InvalidTask, MissingDependency
from holdfast.redact import ANY_KEY, MASK, SECRET_KEYWORD, secrets_in

try:
    import pydantic
    import typing_extensions
    from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
    from pydantic_core import PydanticOmit
except ImportError as error:
    raise MissingDependency(
        "typed tasks read annotations with Pydantic, which is not installed; "
        "pip install 'holdfast[typed]'"
    ) from error

if TYPE_CHECKING:
    from pydantic_core import CoreSchema, ErrorDetails

    from holdfast.client.signature import Signature

Path = tuple[str, ...]
Encoded = tuple[bytes, tuple[Path, ...]]

_MOST_FAULTS = 5
"""More than these are left out of an error message."""

_SHOWN_AS = b'"**********"'
"""How Pydantic dumps a secret."""


class _SchemaWithSecrets(GenerateJsonSchema):
    """Marks values that must not be shown, and leaves out types without a JSON schema."""

    def generate_inner(self, schema: Any) -> JsonSchemaValue:
        made = super().generate_inner(schema)
        function = schema.get("serialization", {}).get("function")
        name = getattr(function, "__name__", "")
        if getattr(function, "__module__", "") == "pydantic.types" and "secret" in name:
            made[SECRET_KEYWORD] = True
        return made

    def handle_invalid_for_json_schema(
        self, schema: CoreSchema, error_info: str
    ) -> JsonSchemaValue:
        return {}

    def encode_default(self, dft: Any) -> Any:
        try:
            return super().encode_default(dft)
        except Exception as error:
            raise PydanticOmit from error

    def emit_warning(self, kind: Any, detail: str) -> None:
        """Types without a schema are left out on purpose, so there is no warning."""


class Codec:
    """Encodes the arguments and the result of one task."""

    def __init__(self, name: str, signature: Signature) -> None:
        self._name = name
        self._signature = signature
        fields = {
            each.name: each.annotation
            if each.required
            else typing_extensions.NotRequired[each.annotation]
            for each in signature.parameters
        }
        self._positional = signature.positional
        self._known = frozenset(fields)
        made = typing_extensions.TypedDict("Arguments", fields)  # type: ignore[misc]
        self._arguments = self._adapter(made)
        self._result = self._adapter(signature.returns)
        self._reads_back = _reads_back(self._arguments.core_schema)
        self.schema = self._arguments.json_schema(
            schema_generator=_SchemaWithSecrets, mode="validation"
        )
        self.redacted = tuple(_secret_paths(self.schema))
        """The paths of values that the signature declares secret."""
        self._secret_result = tuple(
            _secret_paths(
                self._result.json_schema(schema_generator=_SchemaWithSecrets, mode="validation")
            )
        )

    def _adapter(self, kind: Any) -> pydantic.TypeAdapter[Any]:
        """NameError when a class within it names one that is not defined yet."""
        try:
            adapter = pydantic.TypeAdapter(kind)
            if not adapter.pydantic_complete:
                adapter.rebuild(raise_errors=True)
            return adapter
        except (pydantic.errors.PydanticUserError, TypeError) as error:
            raise InvalidTask(
                f"task {self._name!r}: its annotations cannot be read: {_first_line(error)}"
            ) from error

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Encoded:
        """Check the arguments as a call would. Return a payload and the paths of its secrets."""
        values: dict[str, Any] = dict(zip(self._positional, args))  # noqa: B905 - half the time
        if kwargs:
            values.update(kwargs)
        if len(values) != len(args) + len(kwargs) or (kwargs and not values.keys() <= self._known):
            misfit = self._signature.misfit(args, kwargs)
            raise InvalidArguments(f"task {self._name!r} takes {self._signature}; {misfit}")
        checked = values
        try:
            checked = self._arguments.validator.validate_python(values)
            payload, found = _dump(self._arguments, checked)
        except pydantic.ValidationError as error:
            raise InvalidArguments(
                f"task {self._name!r} takes {self._signature}; {self._faults(error)}"
            ) from None
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidArguments(
                f"{self._culprit(checked)} of task {self._name!r} cannot be written as JSON: "
                f"{self._reason(error)}{_advice(error)}"
            ) from None
        if not self._reads_back:
            self._check_reads_back(payload)
        return payload, tuple(dict.fromkeys((*self.redacted, *found))) if found else self.redacted

    def encode_some(self, values: Mapping[str, Any]) -> bytes:
        """Encode arguments without a look whether they fit, or whether all are there."""
        if not values.keys() <= self._known:
            misfit = ", ".join(sorted(values.keys() - self._known))
            raise InvalidArguments(
                f"task {self._name!r} takes {self._signature}; it has no argument {misfit}"
            )
        with warnings.catch_warnings():
            # Of arguments that are missing, or are of another type.
            warnings.simplefilter("ignore")
            return _dump(self._arguments, values)[0]

    def _check_reads_back(self, payload: bytes) -> None:
        try:
            self._arguments.validator.validate_json(payload)
        except pydantic.ValidationError as error:
            raise InvalidArguments(
                f"the arguments of task {self._name!r} could not be read back from their JSON: "
                f"{self._faults(error)}; give each field one alias for both directions, and each "
                "serializer a form that its type accepts"
            ) from None

    def decode(self, payload: bytes | None, hidden: set[str] | None = None) -> dict[str, Any]:
        """Decode the arguments in a payload. Add its secrets to `hidden`."""
        text = payload or b"{}"
        if self.redacted and hidden is not None:
            with contextlib.suppress(ValueError, RecursionError):
                hidden |= secrets_in(json.loads(text), self.redacted)
        try:
            found: dict[str, Any] = self._arguments.validator.validate_json(text)
        except pydantic.ValidationError as error:
            raise InvalidPayload(
                f"the payload does not fit task {self._name!r}: {self._faults(error)}"
            ) from None
        except RecursionError:
            raise InvalidPayload(
                f"the payload does not fit task {self._name!r}: it is nested too deeply"
            ) from None
        return found

    def encode_result(self, value: Any) -> str:
        """Encode the return value of a handler as JSON. ValueError when it does not fit the
        annotation."""
        try:
            payload, _ = _dump(self._result, self._result.validator.validate_python(value))
        except pydantic.ValidationError as error:
            raise ValueError(_faults(error, hide=self._secret_result)) from None
        return payload.decode()

    def decode_result(self, text: str) -> Any:
        """The value behind a stored result. ValueError when it does not fit the annotation."""
        try:
            return self._result.validate_json(text)
        except pydantic.ValidationError as error:
            raise ValueError(_faults(error, hide=self._secret_result)) from None

    def _culprit(self, checked: Mapping[str, Any]) -> str:
        """Name the argument that cannot be written."""
        for name in checked:
            try:
                _dump(self._arguments, {name: checked[name]})
            except (ValueError, TypeError, RecursionError):
                return f"argument {name!r}"
        return "an argument"

    def _faults(self, error: pydantic.ValidationError) -> str:
        return _faults(error, hide=self.redacted)

    def _reason(self, error: Exception) -> str:
        """The message may quote a value."""
        return type(error).__name__ if self.redacted else _first_line(error)


_SYMMETRIC = frozenset(
    (
        *("any", "none", "bool", "int", "float", "decimal", "str", "bytes", "uuid", "url"),
        *("date", "time", "datetime", "timedelta", "enum", "literal", "nullable", "default"),
        *("list", "tuple", "set", "frozenset", "dict", "union", "tagged-union"),
        *("model", "model-fields", "model-field", "typed-dict", "typed-dict-field"),
        *("dataclass", "dataclass-args", "dataclass-field", "definitions", "definition-ref"),
    )
)
"""Kinds of Pydantic's core schemas whose JSON is always read back."""

_ASYMMETRIC_KEYS = frozenset(("validation_alias", "serialization_alias", "serialization_exclude"))
_NO_SCHEMA = frozenset(("metadata", "default", "config"))
"""Parts of a core schema that describe no value."""


def _reads_back(schema: Any) -> bool:
    """Whether all that this schema writes as JSON is known to be read back by it. Aliases,
    validators and serializers of a model's own may not agree with each other."""
    if isinstance(schema, list | tuple):
        return all(map(_reads_back, schema))
    if not isinstance(schema, dict):
        return True
    kind = schema.get("type")
    if not isinstance(kind, str):
        # The fields of a model, or the choices of a union, by name.
        return all(map(_reads_back, schema.values()))
    if kind not in _SYMMETRIC or not _ASYMMETRIC_KEYS.isdisjoint(schema):
        return False
    if kind == "dict" and schema.get("keys_schema", {}).get("type") in ("list", "tuple"):
        return False
    return all(_reads_back(each) for key, each in schema.items() if key not in _NO_SCHEMA)


def _advice(error: Exception) -> str:
    if "invalid utf-8" in str(error):
        return "; bytes are stored as text: pass base64.b64encode(…).decode() instead"
    return "; pass what JSON has, or a type that Pydantic can serialize"


def _dump(adapter: pydantic.TypeAdapter[Any], value: Any) -> tuple[bytes, Sequence[Path]]:
    """JSON that can be read back, and the paths of the secrets that were found in the value."""
    # The adapter's own methods around these two take as long as the work itself.
    payload = adapter.serializer.to_json(value, by_alias=True, round_trip=True)
    # Pydantic writes null for numbers that JSON lacks. They would be read back as None, or refused.
    # `find`, because `in` takes twice as long on bytes.
    if payload.find(b"null") >= 0 and _is_beyond_json(adapter.serializer.to_python(value)):
        raise ValueError("JSON has no NaN and no infinity")
    if payload.find(_SHOWN_AS) < 0:
        return payload, ()
    # Pydantic masks secrets in JSON. A dump to Python keeps them, in the same places.
    secrets: list[Path] = []
    plain = adapter.dump_python(value, by_alias=True, round_trip=True)
    revealed = _reveal(json.loads(payload), plain, (), secrets)
    return pydantic.TypeAdapter(Any).dump_json(revealed), secrets


def _is_beyond_json(value: object) -> bool:
    """Whether a number in it is NaN or infinite."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, Mapping):
        return any(map(_is_beyond_json, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(_is_beyond_json, value))
    return False


def _reveal(shown: Any, plain: Any, path: Path, secrets: list[Path]) -> Any:
    if hasattr(plain, "get_secret_value"):
        secrets.append(path)
        value = plain.get_secret_value()
        dumped = pydantic.TypeAdapter(type(value)).dump_python(value, mode="json")
        return dumped
    if isinstance(shown, dict) and isinstance(plain, Mapping):
        pairs = zip(shown.items(), plain.values(), strict=True)
        return {key: _reveal(one, other, (*path, key), secrets) for (key, one), other in pairs}
    if isinstance(shown, list) and isinstance(plain, list | tuple | set | frozenset):
        inner = (*path, ANY_KEY)
        return [_reveal(*pair, inner, secrets) for pair in zip(shown, plain, strict=True)]
    return shown


def _secret_paths(schema: Mapping[str, Any]) -> Iterator[Path]:
    """The paths that a JSON schema marks as not to be shown."""
    yield from dict.fromkeys(_Walk(schema.get("$defs", {})).paths(schema, (), ()))


class _Walk:
    """Goes through a JSON schema, and into the definitions that it refers to."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._marked = {
            name
            for name, schema in definitions.items()
            if f'"{SECRET_KEYWORD}": true' in json.dumps(schema)
        }

    def paths(self, schema: Any, path: Path, inside: Path) -> Iterator[Path]:
        """The paths below `path`; `inside` are the definitions on the way to it."""
        if not isinstance(schema, Mapping):
            return
        if schema.get(SECRET_KEYWORD):
            yield path
            return
        yield from self._referred(str(schema.get("$ref", "")), path, inside)
        for inner, step in _parts(schema):
            yield from self.paths(inner, (*path, *step), inside)

    def _referred(self, reference: str, path: Path, inside: Path) -> Iterator[Path]:
        name = reference.rpartition("/")[2]
        if name in inside:
            # A model within itself: its paths have no end, so all of it is masked.
            if self._marked.intersection(inside):
                yield path
        elif name in self._definitions:
            yield from self.paths(self._definitions[name], path, (*inside, name))


def _parts(schema: Mapping[str, Any]) -> Iterator[tuple[Any, Path]]:
    """The schemas within a schema, each with the step that leads to it."""
    for key in ("anyOf", "oneOf", "allOf"):
        yield from ((each, ()) for each in schema.get(key, ()))
    for key, each in schema.get("properties", {}).items():
        yield each, (key,)
    inner = [schema.get("items"), schema.get("additionalProperties")]
    inner += schema.get("prefixItems", ())
    inner += schema.get("patternProperties", {}).values()
    yield from ((each, (ANY_KEY,)) for each in inner)


def _faults(error: pydantic.ValidationError, hide: tuple[Path, ...]) -> str:
    """Describe where and why a value was refused. The value itself stays out."""
    details = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [_fault(each, hide) for each in details[:_MOST_FAULTS]]
    if len(details) > _MOST_FAULTS:
        shown.append(f"and {len(details) - _MOST_FAULTS} more")
    return "; ".join(shown)


def _fault(detail: ErrorDetails, hide: tuple[Path, ...]) -> str:
    place = ".".join(str(step) for step in detail["loc"])
    # A validator's own message may quote the value.
    message = _MASKED.get(detail["type"], detail["msg"]) if hide else detail["msg"]
    return f"{place}: {message}" if place else message


_MASKED = {"value_error": MASK, "assertion_error": MASK, "json_invalid": "Invalid JSON"}


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]
