"""Decoding of images from files that are not trusted.

The format is one of a short list and recognised by its signature, the size is checked before any pixel is decoded, and
every error names the file and row. Decoding runs in threads. With photographs they scale, since Pillow releases the
interpreter's lock; with tiny images they gain little, but processes gained only 1.5x on two cores and would import the
caller's script again.
"""

import io
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import BmpImagePlugin, Image, ImageFile, JpegImagePlugin, PngImagePlugin, WebPImagePlugin

from raysim.data.dataset import MAX_SIDE, Source, wrong
from raysim.data.memory import check_images_fit
from raysim.errors import InputError

# The plugins are called directly: Image.open would try others, and refuses very large images without naming their size.
FORMATS = (
    (b"\xff\xd8\xff", JpegImagePlugin.JpegImageFile),
    (b"\x89PNG\r\n\x1a\n", PngImagePlugin.PngImageFile),
    (b"BM", BmpImagePlugin.BmpImageFile),
    (b"RIFF", WebPImagePlugin.WebPImageFile),
)
EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
MAX_BYTES = 128 * 2**20  # of an encoded image: more than 4096x4096 pixels need, uncompressed
CHUNK = 64  # images per task, or fewer if they are large:
CHUNK_BYTES = 16 * 2**20  # of encoded images, and of decoded ones
THREADS = min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def decode(items: Iterable[tuple[str, bytes | Path]], count: int, image_size: int | None = None) -> np.ndarray:
    """Return `count` images as uint8 [count, C, H, W]; each item is a name for errors and the image's bytes or file.

    Without `image_size` all must have the same size and be all grey or all in colour. With it they are resized, and a
    mixture of grey and colour becomes RGB. Images that are all grey keep one channel.
    """
    out: np.ndarray | None = None
    first, done = "", 0
    if image_size is not None:
        check_images_fit(count, (1, image_size, image_size))
    with ThreadPoolExecutor(THREADS) as pool:
        for name, chunk in _in_order(pool, _chunks(items, count, image_size), image_size):
            if out is None:
                out, first = _room_for(count, chunk.shape[1:]), name
            elif chunk.shape[1:] != out.shape[1:]:
                if image_size is None:
                    raise _mixed(name, chunk.shape[1:], first, out.shape[1:])
                if out.shape[1] == 1:
                    check_images_fit(count, (3, *out.shape[2:]))
                    out = np.repeat(out, 3, axis=1)  # the first image in colour
            out[done : done + len(chunk)] = chunk  # a grey chunk is broadcast over the channels
            done += len(chunk)
    if out is None:
        raise ValueError("no images to decode")
    return out


def reader(files: list[Path]) -> Callable[[np.ndarray, int | None], np.ndarray]:
    """Return the `read` of a Source whose images are files of their own."""
    return lambda rows, size: decode(((str(files[row]), files[row]) for row in rows), len(rows), size)


def in_memory(x: np.ndarray, y: np.ndarray) -> Source:
    """Return a Source of images that are decoded already."""
    return Source(y.astype(np.int64), lambda rows, size: resize(x if len(rows) == len(x) else x[rows], size))


def resize(x: np.ndarray, image_size: int | None) -> np.ndarray:
    """Resize decoded images [N, C, H, W] to image_size x image_size, or return them as they are."""
    if image_size is None or x.shape[2:] == (image_size, image_size):
        return x
    out = _room_for(len(x), (x.shape[1], image_size, image_size))
    for i, pixels in enumerate(x):
        pixels = np.ascontiguousarray(pixels.transpose(1, 2, 0) if len(pixels) == 3 else pixels[0])
        out[i] = _stack([_square(Image.fromarray(pixels), image_size)])[0]
    return out


def _chunks(
    items: Iterable[tuple[str, bytes | Path]], count: int, image_size: int | None
) -> Iterator[list[tuple[str, bytes | Path]]]:
    """Yield the items in chunks that fit into memory, encoded and decoded.

    How large they are when decoded is `image_size`, or the size of the first, which all must have. If `count` of that
    do not fit into the memory, nothing is decoded.
    """
    chunk: list[tuple[str, bytes | Path]] = []
    most, size = CHUNK, 0
    for number, (name, encoded) in enumerate(items):
        if number == 0:
            width, height = (image_size, image_size) if image_size else _header(name, encoded).size
            check_images_fit(count, (1, height, width))
            most = max(1, min(CHUNK, CHUNK_BYTES // (3 * width * height)))
        length = len(encoded) if isinstance(encoded, bytes) else 0  # a file is read when its turn comes
        if chunk and (len(chunk) == most or size + length > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append((name, encoded))
        size += length
    if chunk:
        yield chunk


def _in_order(
    pool: ThreadPoolExecutor, chunks: Iterable[list[tuple[str, bytes | Path]]], image_size: int | None
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the decoded chunks in their order, each with the name of its first image.

    Only a few are in progress at a time, since encoded images may be much larger than decoded and resized ones.
    """
    waiting: deque[tuple[str, Future[np.ndarray]]] = deque()
    for chunk in chunks:
        waiting.append((chunk[0][0], pool.submit(_decode_chunk, chunk, image_size)))
        if len(waiting) > 2 * THREADS:
            name, future = waiting.popleft()
            yield name, future.result()
    for name, future in waiting:
        yield name, future.result()


def _decode_chunk(chunk: list[tuple[str, bytes | Path]], image_size: int | None) -> np.ndarray:
    images: list[Image.Image] = []
    for name, encoded in chunk:
        image = _plain(_open(name, encoded))
        if image_size is not None:
            image = _square(image, image_size)
        elif images and (image.size, image.mode) != (images[0].size, images[0].mode):
            raise _mixed(name, _shape(image), chunk[0][0], _shape(images[0]))
        images.append(image)
    if len({image.mode for image in images}) > 1:
        images = [image.convert("RGB") for image in images]
    return _stack(images)


def _open(name: str, encoded: bytes | Path) -> Image.Image:
    """Return the image with its pixels; one of 16 bits that are not those of 8 is refused, not rounded."""
    image = _header(name, encoded)
    deep = any(";16" in str(tile.args) for tile in image.tile)  # of colours, Pillow reads the upper 8 alone
    try:
        image.load()
    except Exception as error:  # decoders raise any kind of exception for a broken file
        raise wrong(f"{name}: broken {image.format} image ({error}); replace or remove it") from error
    if deep and not (image.mode.startswith("I;16") and _is_of_8_bits(np.asarray(image))):
        raise wrong(f"{name}: it has 16 bits a channel, and images are kept in 8; convert it where that loses nothing")
    return image


def _is_of_8_bits(pixels: np.ndarray) -> bool:
    """Return whether pixels of 16 bits are those of 8: shifted up, or twice the same byte."""
    low, high = pixels & 255, pixels >> 8
    return not low.any() or bool((low == high).all())


def _header(name: str, encoded: bytes | Path) -> ImageFile.ImageFile:
    """Return the image before any pixel is decoded, or raise an InputError if it is none or larger than allowed."""
    if isinstance(encoded, Path):
        encoded = _read(encoded)
    if len(encoded) > MAX_BYTES:
        raise wrong(f"{name}: {len(encoded):,} bytes; an image may have at most {MAX_BYTES:,}: shrink or remove it")
    plugin = next((plugin for signature, plugin in FORMATS if encoded.startswith(signature)), None)
    if plugin is None:
        raise wrong(f"{name}: not an image (neither JPEG, PNG, BMP nor WebP); replace or remove it")
    try:
        image = plugin(io.BytesIO(encoded))
    except Exception as error:  # as above
        raise wrong(f"{name}: broken {plugin.format} image ({error}); replace or remove it") from error
    width, height = image.size
    if max(width, height) > MAX_SIDE:
        raise wrong(f"{name}: {width:,}x{height:,} pixels; at most {MAX_SIDE:,}x{MAX_SIDE:,}: shrink or remove it")
    if min(width, height) < 1:
        raise wrong(f"{name}: {width}x{height} pixels: nothing to see; replace or remove it")
    return image


def _read(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise wrong(f"{path}: {size:,} bytes; an image may have at most {MAX_BYTES:,}: shrink or remove it")
        return path.read_bytes()
    except OSError as error:
        raise wrong(f"{path}: cannot be read ({error.strerror}); check its permissions") from error


def _plain(image: Image.Image) -> Image.Image:
    """Convert grey images to mode L, and all others to RGB; transparency is dropped."""
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    mode = "L" if image.mode in ("1", "L", "LA") else "RGB"
    return image if image.mode == mode else image.convert(mode)


def _square(image: Image.Image, side: int) -> Image.Image:
    """Resize the image to a square. Pillow's bilinear filter adapts to the reduction, so shrinking does not alias."""
    return image if image.size == (side, side) else image.resize((side, side), Image.Resampling.BILINEAR)


def _shape(image: Image.Image) -> tuple[int, int, int]:
    return len(image.getbands()), image.height, image.width


def _stack(images: list[Image.Image]) -> np.ndarray:
    channels, height, width = _shape(images[0])
    pixels = np.frombuffer(b"".join(image.tobytes() for image in images), np.uint8)
    return np.ascontiguousarray(pixels.reshape(len(images), height, width, channels).transpose(0, 3, 1, 2))


def _room_for(count: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array for so many images, or raise an InputError if it does not fit into the memory."""
    check_images_fit(count, shape)
    return np.empty((count, *shape), np.uint8)


def _mixed(name: str, shape: tuple[int, ...], first: str, first_shape: tuple[int, ...]) -> InputError:
    def words(shape: tuple[int, ...]) -> str:
        return f"{shape[2]}x{shape[1]} {'grey' if shape[0] == 1 else 'RGB'}"

    return wrong(f"{name}: {words(shape)}, but {first} is {words(first_shape)}; give --image-size N to make them alike")
