"""Draws the pictures for the demo and the tests: ``python pictures.py FOLDER``.

Everything is drawn with fonts that matplotlib ships, without chance or downloads, so every run
gives the same pixels. One picture is a real scan, from scikit-image. Three are bad on purpose.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

PLAIN_LINES = (
    "PENSTOCK HARBOUR OFFICE",
    "Arrivals on Tuesday 14 October",
    "Berth 7   MV Cormorant   06:45",
    "Berth 12   SS Meridian   09:20",
    "Cargo: 1,250 barrels of olive oil",
    "Please report to the duty officer.",
)


def package_file(package: str, path: str) -> Path:
    """A file that an installed package ships; the package is not imported for it."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"the package {package} is not installed")
    return Path(spec.origin).parent / path


def font(name: str, size: int) -> ImageFont.FreeTypeFont:
    """A font of matplotlib's by its file name."""
    path = package_file("matplotlib", f"mpl-data/fonts/ttf/{name}.ttf")
    # The basic layout is the same everywhere; the other one depends on a system library.
    return ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)


def sheet(width: int, height: int, colour: str | tuple[int, int, int] = "white") -> Image.Image:
    """An empty sheet."""
    return Image.new("RGB", (width, height), colour)


def write(
    page: Image.Image,
    x: int,
    y: int,
    text: str,
    face: ImageFont.FreeTypeFont,
    colour: str | tuple[int, int, int] = "black",
) -> None:
    """Put one line of text on a sheet, its top left corner at ``x``, ``y``."""
    ImageDraw.Draw(page).text((x, y), text, font=face, fill=colour)


def plain() -> Image.Image:
    """Clear lines in one font, each a little smaller than the one before."""
    page = sheet(900, 560)
    for row, text in enumerate(PLAIN_LINES):
        write(page, 60, 40 + 85 * row, text, font("DejaVuSans", 42 - 3 * row))
    return page


def fonts() -> Image.Image:
    """One line in each of several fonts, some in colour."""
    page = sheet(1000, 680, (250, 248, 240))
    for row, (name, size, colour) in enumerate(
        [
            ("DejaVuSerif", 30, "black"),
            ("DejaVuSansMono", 26, "darkblue"),
            ("STIXGeneral", 34, "black"),
            ("DejaVuSans-Bold", 30, "darkred"),
            ("STIXGeneralItalic", 32, "black"),
            ("DejaVuSerif-Bold", 24, "darkgreen"),
            ("cmr10", 30, "black"),
        ]
    ):
        text = f"{row + 1}. Seven pilots boarded quickly, fee 38.50"
        write(page, 50, 40 + 88 * row, text, font(name, size), colour)
    return page


def columns() -> Image.Image:
    """A table of three columns, whose cells must come in reading order; white on dark."""
    page = sheet(1000, 420, (35, 45, 70))
    rows = [
        ("Ship", "Depth", "Departure"),
        ("Albatross", "6.5 m", "11:30"),
        ("Kingfisher", "4.2 m", "13:05"),
        ("Heron", "7.8 m", "18:50"),
    ]
    for row, cells in enumerate(rows):
        for column, text in enumerate(cells):
            face = font("DejaVuSans-Bold" if row == 0 else "DejaVuSans", 30)
            write(page, 60 + 330 * column, 45 + 90 * row, text, face, "white")
    return page


def upside_down() -> Image.Image:
    """Two lines on their heads between two that are not."""
    page = sheet(900, 440)
    face = font("DejaVuSans", 36)
    write(page, 60, 40, "This line stands upright", face)
    write(page, 60, 340, "and so does the last one", face)
    for y, text in ((140, "Turn the sheet around"), (240, "to read these two lines")):
        line = sheet(780, 60)
        write(line, 10, 6, text, face)
        page.paste(line.rotate(180), (60, y))
    return page


def tilted() -> Image.Image:
    """A sheet laid on the scanner at an angle."""
    page = sheet(900, 480)
    for row, text in enumerate(("Laid down in a hurry", "at an angle of six degrees", "No. 4711")):
        write(page, 120, 110 + 100 * row, text, font("DejaVuSerif", 38))
    return page.rotate(6, resample=Image.Resampling.BICUBIC, fillcolor="white")


def downwards() -> Image.Image:
    """A line that runs from top to bottom beside one that does not."""
    page = sheet(700, 620)
    write(page, 200, 90, "Spine of a book", font("DejaVuSans", 40))
    spine = sheet(520, 60)
    write(spine, 10, 6, "VOLUME THREE: TIDES", font("DejaVuSans", 38))
    page.paste(spine.rotate(90, expand=True), (60, 50))
    return page


def noisy() -> Image.Image:
    """Grey text under heavy noise."""
    page = sheet(900, 400, (205, 200, 190))
    for row, text in enumerate(
        ("Carbon copy, third sheet", "Received 27 March 1968", "Signed: P. Marlowe")
    ):
        write(page, 70, 50 + 110 * row, text, font("DejaVuSansMono", 34), (70, 70, 80))
    noise = np.random.default_rng(1968).normal(0, 28, (400, 900, 3))
    return Image.fromarray(np.clip(np.asarray(page) + noise, 0, 255).astype(np.uint8))


def strip() -> Image.Image:
    """One long, flat line: much wider than high."""
    page = sheet(1300, 48, (240, 240, 255))
    text = "Notice to mariners: the eastern lock is closed until further notice"
    write(page, 12, 6, text, font("DejaVuSans", 30))
    return page


def small() -> Image.Image:
    """A label of a few pixels' height, which must be enlarged."""
    page = sheet(90, 26)
    write(page, 8, 2, "LOT 5804", font("DejaVuSans", 15))
    return page


def large() -> Image.Image:
    """A poster larger than the detector works on, which must be made smaller."""
    page = sheet(2600, 1000, (255, 250, 235))
    write(page, 150, 120, "Grand Regatta", font("STIXGeneralBol", 220), "darkblue")
    write(page, 160, 480, "Saturday 21 June, from noon", font("DejaVuSerif", 110))
    write(page, 160, 720, "Tickets at the harbour office, 12.50 each", font("DejaVuSans", 70))
    return page


def blank() -> Image.Image:
    """Shapes, but no text."""
    page = sheet(640, 480, (200, 220, 235))
    ImageDraw.Draw(page).ellipse((120, 90, 420, 390), fill=(240, 200, 90))
    return page


GOOD: dict[str, Callable[[], Image.Image]] = {
    "plain.png": plain,
    "fonts.png": fonts,
    "columns.png": columns,
    "upside_down.png": upside_down,
    "tilted.png": tilted,
    "downwards.png": downwards,
    "noisy.jpg": noisy,
    "strip.png": strip,
    "small.png": small,
    "large.png": large,
}
SCAN = "page.png"  # a scanned page of a book, from scikit-image
BLANK = "blank.png"
NOT_A_PICTURE = "not_a_picture.png"
TOO_LARGE = "too_large.png"


def draw_pictures(folder: Path) -> list[Path]:
    """Write all pictures into a folder.

    Returns:
        The paths of those with text, in a fixed order: the drawn ones, then the scan. Beside them
        stand ``BLANK``, ``NOT_A_PICTURE`` and ``TOO_LARGE``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in {**GOOD, BLANK: blank}.items():
        draw().save(folder / name)
    scan = package_file("skimage", f"data/{SCAN}")
    (folder / SCAN).write_bytes(scan.read_bytes())
    (folder / NOT_A_PICTURE).write_text("Only the name of this file says that it is a picture.\n")
    # One bit per pixel: ten kilobytes that would be two hundred megabytes once decoded.
    Image.new("1", (9000, 8000)).save(folder / TOO_LARGE)
    return [folder / name for name in (*GOOD, SCAN)]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python pictures.py FOLDER")
    for picture in draw_pictures(Path(sys.argv[1])):
        print(picture)
