"""Names for people of the figures that raysim and its methods report under short ones."""

# After the part's name; {} is what the part shares, or the model.
_FIGURES = {
    "auc": "attack on {}: area under the ROC curve (AUC)",
    "tpr_at_1%_fpr": "attack on {}: members found at 1 % false alarms",
    "tpr_at_0.1%_fpr": "attack on {}: members found at 0.1 % false alarms",
    "epsilon": "certified ε of {}",
    "epsilon_without_filter": "ε of {} if it were not filtered",
    "paper_epsilon": "ε of {} by the paper's formula",
    "nearest_training": "distance of {} to the nearest training image",
    "nearest_held_out": "distance of {} to the nearest held-out image",
    "nearer_to_training": "share of {} nearer to training than to held-out images",
    "psnr_nearest": "PSNR of {} to the nearest training image",
    "psnr": "PSNR of {} to the images they were made from",
}
_OF_IMAGES = ("nearest", "nearer", "psnr")  # figures of images: what these begin with
_ALONE = {
    "psnr": "PSNR of shared images to the images they were made from",
    "feature_kl": "KL divergence of a class's features between clients",
}


def figure_name(name: str) -> str:
    """Return a figure's name in words.

    >>> figure_name("hfmds.nearer_to_training")
    "share of hfmds's images nearer to training than to held-out images"
    >>> figure_name("model.auc")
    'attack on the model: area under the ROC curve (AUC)'
    >>> figure_name("my_part.mean_speed")
    'my_part: mean speed'
    """
    subject, dot, key = name.partition(".")
    if name in _ALONE:
        return _ALONE[name]
    if key in _FIGURES:
        shared = f"{subject}'s images" if key.startswith(_OF_IMAGES) else f"what {subject} shares"
        return _FIGURES[key].format("the model" if subject == "model" else shared)
    return f"{subject}: {key.replace('_', ' ')}" if dot else name.replace("_", " ")
