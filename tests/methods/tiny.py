"""A tiny run of every method: what makes each one quick and lets it do all it does in a few rounds."""

TINY = {
    "model": "small-cnn", "clients": 5, "active": 4, "rounds": 2, "batch_size": 5, "lr": 0.02, "eval_batch": 25,
    "partition": "classes", "classes_per_client": 2, "seed": 1,
}  # fmt: skip

SMALL_GAN = {"pool": 20, "gan_rounds": 2, "gan_steps": 3, "gan_batch": 6, "width": 4, "noise": 8}

# Settings that make a method quick and let it do all it does in few rounds.
QUICK = {
    "fedbn": {"evaluation": "clients"},
    "feddpgan": {f"feddpgan.{key}": value for key, value in SMALL_GAN.items()},
    "feddpms": {
        "model": "feddpms-vae", "rounds": 4, "feddpms.first_stage": 0.25, "feddpms.quota": 3, "feddpms.tries": 3,
        "feddpms.classes": 2, "feddpms.noise": 0.5, "feddpms.vae_weight": 0.002,  # set for Adam; this is SGD
    },
    "fedgan": {f"fedgan.{key}": value for key, value in SMALL_GAN.items()},
    "fedgen": {"fedgen.gen_steps": 3},
    "fedgen_reference": {"fedpa_reference.gen_steps": 3},
    "fedpa": {"fedpa.gen_steps": 3},
    "fedpa_reference": {"fedpa_reference.gen_steps": 3},
    "hfmds": {"hfmds.first": 2, "hfmds.steps": 2, "hfmds.per_client": 4},
    "fmds": {"hfmds.first": 2, "hfmds.steps": 2, "hfmds.per_client": 4},
    "fixmatch": {"labelled": 12, "unlabelled_batch": 8, "fixmatch.threshold": 0.1},
    "mixup": {"labelled": 12, "unlabelled_batch": 8, "mixup.threshold": 0.1},
    "sdafl": {"sdafl.server_steps": 2, "sdafl.threshold": 0.1, "sdafl.gan_slice": 1}
    | {f"sdafl.{key}": value for key, value in SMALL_GAN.items()},
}  # fmt: skip


def settings_of(*names: str, **settings) -> dict:
    """A tiny run of these methods together."""
    quick = {key: value for name in names for key, value in QUICK.get(name, {}).items()}
    return TINY | {"method": "+".join(names)} | quick | settings
