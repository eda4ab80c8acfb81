"""Documents that ``apply`` is given, with the places of what only shows when all of them are together."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ostinato.cli.commands.apply_files import find_files, read_file, shown_name
from ostinato.control.document.errors import InvalidDocument
from ostinato.control.document.read import Document, refuse_repeats
from ostinato.control.document.yaml_nodes import Faults, read_nodes
from ostinato.control.document.yaml_text import read_yaml
from ostinato.errors import UserError

_DEFAULT_NAMESPACE = "default"


class _Source(msgspec.Struct):
    """A file and the documents in it."""

    name: str
    content: bytes
    documents: list[Document]


def read_documents(given: Sequence[str], *, namespace: str, namespace_was_given: bool) -> list[Document]:
    """All documents of the files and folders in `given`.

    `namespace` holds for documents that name none; where it was given for this apply (by ``--namespace``),
    one that names another is an error. Raises ``InvalidDocument`` with every error of every file.
    """
    sources: list[_Source] = []
    errors: list[UserError] = []
    for name in find_files(given):
        try:
            content = read_file(name)
            sources.append(_Source(name, content, read_yaml(content, name=shown_name(name))))
        except InvalidDocument as error:
            errors += error.errors
        except UserError as error:
            errors.append(error)
    if namespace_was_given or namespace != _DEFAULT_NAMESPACE:
        for source in sources:
            errors += _put_into(source, namespace, only=namespace_was_given)
    documents = [document for source in sources for document in source.documents]
    try:
        refuse_repeats(documents)
    except InvalidDocument as error:
        errors += error.errors
    if errors:
        raise InvalidDocument(errors)
    return documents


def _put_into(source: _Source, namespace: str, *, only: bool) -> list[UserError]:
    """Give documents that name no namespace this one; with `only` refuse those that name another."""
    errors: list[UserError] = []
    for index, place in enumerate(_namespace_places(source)):
        document = source.documents[index]
        if not place:
            definitions = [
                msgspec.structs.replace(definition, namespace=namespace)
                for definition in document.definitions
            ]
            source.documents[index] = Document(namespace, definitions, document.places)
        elif only and document.namespace != namespace:
            errors.append(
                UserError(
                    "INVALID_VALUE",
                    f"the document is for {document.namespace}, and --namespace says {namespace}",
                    field="namespace",
                    place=place,
                    hint="leave out one of the two",
                )
            )
    return errors


def _namespace_places(source: _Source) -> list[str]:
    """Where each document of a file that has been read names its namespace; empty for one that does not."""
    places: list[str] = []
    for root in read_nodes(source.content.decode("utf-8-sig"), Faults()):
        if root.kind == "map":  # else an empty document between two markers
            said = root.value.get("namespace")
            line, column = (0, 0) if said is None else said.position
            places.append("" if said is None else f"{shown_name(source.name)}:{line}:{column}")
    return places
