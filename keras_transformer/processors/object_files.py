"""Folders of images with boxes: COCO's JSON and the XML of Pascal VOC."""

import os
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any
from xml.etree import ElementTree

from keras_transformer.processors.image_files import SUFFIXES, image_size
from keras_transformer.support.checking import check_path, describe, is_int, is_number, shorten
from keras_transformer.support.files import parse_json, read_file

# The instances of COCO's largest part are 0.45 GB.
_MOST_JSON = 2**30
_MOST_XML = 2**20


def read_coco(
    annotations: str | os.PathLike, images: str | os.PathLike
) -> tuple[list[str], list[dict[str, list]], list[str]]:
    """Read the objects of a data set in COCO's format.

    Boxes are cut to their image. Crowds, and boxes without area, are left out.

    Args:
        annotations: path of the JSON file, with the lists `images`, `annotations` and `categories`.
        images: path of the folder of the images.

    Returns:
        A list of the paths of all images; a list of a dict for each: its `boxes`, (x_min, y_min,
        x_max, y_max) in pixels, and `labels`, the names of their classes; and a list of the names
        of all categories, in the order of their numbers.

    Raises:
        FileNotFoundError: if the file, the folder or an image is missing.
        ValueError: if the file is not of this format, or an annotation names an image or a category
            that the file does not list.

    Example:
    ```python
    import json, pathlib, tempfile
    import numpy as np
    from PIL import Image
    import keras_transformer as kt

    folder = pathlib.Path(tempfile.mkdtemp())
    Image.fromarray(np.zeros((8, 8, 3), "uint8")).save(folder / "1.png")
    data = {
        "images": [{"id": 7, "file_name": "1.png", "height": 8, "width": 8}],
        "categories": [{"id": 18, "name": "dog"}],
        "annotations": [{"image_id": 7, "category_id": 18, "bbox": [1, 2, 3, 4]}],
    }
    (folder / "objects.json").write_text(json.dumps(data))
    images, objects, labels = kt.processors.read_coco(folder / "objects.json", folder)
    assert objects == [{"boxes": [[1, 2, 4, 6]], "labels": ["dog"]}] and labels == ["dog"]
    ```

    Source: Lin et al. 2014, "Microsoft COCO: Common Objects in Context".
    """
    path = Path(check_path("annotations", annotations)).expanduser()
    folder = _folder("images", images)
    try:
        data = parse_json(read_file(path, _MOST_JSON))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}.") from None
    parts = {}
    for name in ("images", "annotations", "categories"):
        rows = data.get(name) if isinstance(data, Mapping) else None
        if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
            raise ValueError(f"{path} must have {name!r}, a list of objects, as COCO's files do.")
        parts[name] = rows
    names = {_id(row, "id", path): _text(row, "name", path) for row in parts["categories"]}
    labels = [names[number] for number in sorted(names)]
    if len(set(labels)) < len(labels):
        raise ValueError(f"{path} has categories of the same name: {shorten(labels)}.")
    places, sizes = {}, {}
    for row in parts["images"]:
        number = _id(row, "id", path)
        places[number] = _inside(folder, _text(row, "file_name", path))
        sides = [row.get(name) for name in ("height", "width")]
        known = all(is_number(side) and side > 0 for side in sides)
        sizes[number] = tuple(sides) if known else image_size(places[number])
    objects: dict[int, dict[str, list]] = {n: {"boxes": [], "labels": []} for n in places}
    for i, row in enumerate(parts["annotations"]):
        image, category = (_id(row, name, path) for name in ("image_id", "category_id"))
        if image not in places or category not in names:
            wrong = f"image_id {image}" if image not in places else f"category_id {category}"
            raise ValueError(f"{path}: annotation {i} has the {wrong}, which is not listed.")
        if row.get("iscrowd"):
            continue
        box = row.get("bbox")
        if not isinstance(box, list) or len(box) != 4 or not all(map(is_number, box)):
            raise ValueError(
                f"{path}: the bbox of annotation {i} must be four numbers, received {shorten(box)}."
            )
        x, y, width, height = box
        found = _cut([x, y, x + width, y + height], sizes[image])
        if found[2] > found[0] and found[3] > found[1]:
            objects[image]["boxes"].append(found)
            objects[image]["labels"].append(names[category])
    return [str(place) for place in places.values()], list(objects.values()), labels


def read_voc(
    annotations: str | os.PathLike, images: str | os.PathLike
) -> tuple[list[str], list[dict[str, list]], list[str]]:
    """Read the objects of a data set in the format of Pascal VOC: an XML file for each image.

    The first pixel of VOC has the number 1, and boxes include their last pixel: 1 is subtracted
    from x_min and y_min.

    Args:
        annotations: path of the folder of the XML files, such as `VOC2012/Annotations`.
        images: path of the folder of the images, such as `VOC2012/JPEGImages`.

    Returns:
        As `read_coco`; the names of classes are sorted.

    Raises:
        FileNotFoundError: if a folder or an image is missing.
        ValueError: if the folder has no XML files, or one is not of this format.

    Example:
    ```python
    import pathlib, tempfile
    import numpy as np
    from PIL import Image
    import keras_transformer as kt

    folder = pathlib.Path(tempfile.mkdtemp())
    Image.fromarray(np.zeros((8, 8, 3), "uint8")).save(folder / "1.png")
    box = "<xmin>2</xmin><ymin>3</ymin><xmax>4</xmax><ymax>6</ymax>"
    (folder / "1.xml").write_text(
        "<annotation><filename>1.png</filename>"
        f"<object><name>dog</name><bndbox>{box}</bndbox></object></annotation>"
    )
    images, objects, labels = kt.processors.read_voc(folder, folder)
    assert objects == [{"boxes": [[1, 2, 4, 6]], "labels": ["dog"]}] and labels == ["dog"]
    ```

    Source: Everingham et al. 2010, "The Pascal Visual Object Classes (VOC) Challenge".
    """
    folder, pictures = _folder("annotations", annotations), _folder("images", images)
    files = sorted(p for p in folder.iterdir() if p.suffix.lower() == ".xml")
    if not files:
        raise ValueError(f"{folder} has no files that end with .xml.")
    paths, objects = [], []
    for file in files:
        root = _parsed(file)
        name = root.findtext("filename") or file.stem
        if not PurePath(name).suffix:
            name += next((s for s in SUFFIXES if (pictures / (name + s)).is_file()), ".jpg")
        place = _inside(pictures, name)
        boxes, labels = [], []
        for number, row in enumerate(root.iter("object")):
            label, box = (row.findtext("name") or "").strip(), row.find("bndbox")
            try:
                sides = [float(box.findtext(n)) for n in ("xmin", "ymin", "xmax", "ymax")]
            except (AttributeError, TypeError, ValueError):
                sides = []
            if not label or not sides:
                raise ValueError(f"{file}: object {number} must have a name and a bndbox.")
            boxes.append([sides[0] - 1, sides[1] - 1, *sides[2:]])
            labels.append(label)
        paths.append(str(place))
        objects.append({"boxes": boxes, "labels": labels})
    return paths, objects, sorted({label for each in objects for label in each["labels"]})


class _WithoutEntities(ElementTree.TreeBuilder):
    """Build a tree, but refuse a document type, whose entities may be of any size."""

    def doctype(self, name, public, system):
        raise ValueError("it has a document type")


def _parsed(file: Path) -> ElementTree.Element:
    """Parse an untrusted XML file. Raises ValueError if it is damaged or defines entities."""
    content = read_file(file, _MOST_XML)
    try:
        return ElementTree.fromstring(content, ElementTree.XMLParser(target=_WithoutEntities()))
    except (ElementTree.ParseError, ValueError, LookupError, RecursionError) as error:
        raise ValueError(f"{file} cannot be read: {error}.") from None


def _folder(name: str, given: str | os.PathLike) -> Path:
    folder = Path(check_path(name, given)).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {folder}.")
    return folder


def _inside(folder: Path, name: str) -> Path:
    """Return the path of an image, which may not leave its folder."""
    parts = PurePath(name).parts
    if PurePath(name).is_absolute() or ".." in parts or "\0" in name:
        raise ValueError(f"The image {name!r} must be inside {folder}: give a relative name.")
    place = folder / name
    if not place.is_file():
        raise FileNotFoundError(f"There is no image {name!r} in {folder}.")
    return place


def _cut(box: list[float], size: tuple[int, int]) -> list[float]:
    limits = (size[1], size[0], size[1], size[0])
    return [min(max(side, 0), limit) for side, limit in zip(box, limits, strict=True)]


def _id(row: Mapping[str, Any], name: str, path: Path) -> int:
    if not is_int(row.get(name)):
        raise ValueError(
            f"{path}: {name!r} must be an integer, received {describe(row.get(name))}."
        )
    return row[name]


def _text(row: Mapping[str, Any], name: str, path: Path) -> str:
    if not isinstance(row.get(name), str) or not row[name]:
        raise ValueError(f"{path}: {name!r} must be a string, received {describe(row.get(name))}.")
    return row[name]
