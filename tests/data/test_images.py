"""Images from outside: what is decoded, and what is refused, where and why."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from raysim.data import images
from raysim.errors import InputError

from .made import encoded, one_line_error, picture, pixels, png_header


def decode(blobs, image_size=None):
    return images.decode([(f"f.parquet: row {i}", blob) for i, blob in enumerate(blobs)], len(blobs), image_size)


@pytest.mark.parametrize("format", ["PNG", "BMP"])
@pytest.mark.parametrize("channels", [1, 3])
def test_lossless_formats_come_back_bit_for_bit(format, channels):
    x = pixels(300, channels)  # several chunks
    decoded = decode([encoded(image, format) for image in x])
    assert decoded.flags.c_contiguous
    assert np.array_equal(decoded, x)


@pytest.mark.parametrize("format", ["JPEG", "WEBP"])
def test_lossy_formats_come_back_nearly(format):
    x = np.full((3, 3, 16, 16), [[[90]], [[120]], [[200]]], np.uint8)
    assert np.abs(decode([encoded(image, format) for image in x]).astype(int) - x).max() < 10


def test_files_are_read_too(tmp_path):
    x = pixels(2)
    files = [tmp_path / f"{i}.png" for i in range(2)]
    for file, image in zip(files, x, strict=True):
        picture(image).save(file)
    assert np.array_equal(images.reader(files)(np.array([1]), None), x[1:])
    files[0].unlink()
    with one_line_error(files[0], "cannot be read"):
        images.reader(files)(np.array([0]), None)


def test_a_file_too_long_is_not_even_read(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "MAX_BYTES", 10)
    (tmp_path / "long.png").write_bytes(bytes(11))
    with one_line_error("long.png", "11 bytes"):
        images.reader([tmp_path / "long.png"])(np.array([0]), None)


@pytest.mark.parametrize(("mode", "channels"), [("1", 1), ("L", 1), ("LA", 1), ("P", 3), ("RGBA", 3)])
def test_other_modes_become_grey_or_rgb(mode, channels):
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (255, 0, 0)).convert(mode).save(file, "PNG")
    assert decode([file.getvalue()]).shape == (1, channels, 8, 8)


def png_of_16_bits(kind: int, channels: int, value: int, last: int | None = None) -> bytes:
    """A PNG of 8x8 pixels that have this value in every channel, but for the last one."""
    values = np.full((8, 8 * channels), value, ">u2")
    values[-1, -1] = value if last is None else last
    header = struct.pack(">IIBBBBB", 8, 8, 16, kind, 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in values)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    )


@pytest.mark.parametrize("value", [0x9C9C, 0x9C00])
def test_grey_of_16_bits_that_are_those_of_8_is_read(value):
    assert (decode([png_of_16_bits(0, 1, value)]) == 0x9C).all()


@pytest.mark.parametrize(
    ("kind", "channels", "value", "last"),
    [(0, 1, 40_000, None), (0, 1, 0x9C9C, 0x9C9D), (2, 3, 300, None), (4, 2, 300, None), (6, 4, 300, None)],
    ids=["grey", "one pixel", "rgb", "grey and alpha", "rgb and alpha"],
)
def test_other_images_of_16_bits_are_refused_and_not_cut(kind, channels, value, last):
    with one_line_error("f.parquet: row 0", "it has 16 bits a channel, and images are kept in 8"):
        decode([png_of_16_bits(kind, channels, value, last)])


@pytest.mark.parametrize(("width", "height"), [(20_000, 20_000), (4097, 10), (10, 65_000)])
def test_an_image_too_large_is_refused_before_decoding(width, height):
    with one_line_error("f.parquet: row 1", f"{width:,}x{height:,}", "4,096x4,096", "shrink or remove"):
        decode([encoded(pixels(1)[0]), png_header(width, height)])


def test_a_jpeg_that_claims_to_be_large_is_refused():
    blob = bytearray(encoded(pixels(1, size=16)[0], "JPEG"))
    size = blob.index(b"\xff\xc0") + 5
    blob[size : size + 4] = b"\xff\xff\xff\xff"
    with one_line_error("row 0", "65,535x65,535"):
        decode([bytes(blob)])


@pytest.mark.parametrize("blob", [b"", b"not an image", b"GIF89a" + bytes(20), b"%PDF-1.7", b"II*\0" + bytes(50)])
def test_what_is_not_an_allowed_image_is_refused(blob):
    with one_line_error("f.parquet: row 2", "not an image", "JPEG, PNG", "replace or remove"):
        decode([encoded(pixels(1)[0])] * 2 + [blob])


@pytest.mark.parametrize("format", ["JPEG", "PNG", "BMP", "WEBP"])
def test_a_broken_image_names_its_row_from_any_thread(format):
    good = encoded(pixels(1, size=64)[0], format)
    blobs = [good] * 500
    blobs[333] = blobs[410] = good[: len(good) // 2]
    with one_line_error("f.parquet: row 333:", f"broken {format} image", "replace or remove"):
        decode(blobs)


def test_every_cut_and_every_flipped_byte_is_decoded_or_refused():
    good = encoded(pixels(1)[0])
    refused = 0
    for i in range(len(good)):
        for blob in (good[:i], good[:i] + bytes([good[i] ^ 0xFF]) + good[i + 1 :]):
            try:
                decode([blob])
            except InputError:
                refused += 1
    assert refused > len(good)


@pytest.mark.parametrize("other", [pixels(1, 3, 9)[0], pixels(1, 1, 8)[0]], ids=["size", "channels"])
@pytest.mark.parametrize("place", [1, 200])
def test_mixtures_need_an_image_size(other, place):
    blobs = [encoded(x) for x in pixels(300)]
    blobs[place] = encoded(other)
    with one_line_error("row ", f"{other.shape[2]}x{other.shape[1]}", "8x8 RGB", "--image-size N"):
        decode(blobs)
    assert decode(blobs, 6).shape == (300, 3, 6, 6)


def test_grey_images_first_and_then_one_in_colour():
    grey, colour = pixels(200, 1), pixels(1, 3)
    decoded = decode([encoded(x) for x in (*grey, *colour)], 8)
    assert np.array_equal(decoded[:200], np.repeat(grey, 3, axis=1))
    assert np.array_equal(decoded[200:], colour)


def test_resizing_decoded_images_is_the_same_as_resizing_on_decoding():
    for channels in (1, 3):
        x = pixels(5, channels, 16)
        assert np.array_equal(images.resize(x, 8), decode([encoded(image) for image in x], 8))
        assert images.resize(x, None) is x
        assert images.resize(x, 16) is x


def test_shrinking_does_not_alias():
    stripes = np.zeros((1, 1, 64, 64), np.uint8)
    stripes[..., ::2] = 200
    assert np.abs(images.resize(stripes, 8).astype(int) - 100).max() <= 8


def test_more_images_than_the_memory_holds_are_refused():
    with one_line_error("GiB", "lower --image-size, --train-size"):
        images.decode([("row 0", encoded(pixels(1)[0]))], 10**13)
