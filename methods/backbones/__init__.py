"""Backbones: modules from images ``[B, C, H, W]`` to pooled features ``[B, F]`` with ``out_features``.

``convnet`` is for the embedded data sets and starts at random; all others are for photographs and bring their own
normalisation: ``bn_inception``, ``googlenet``, ``squeezenet1_0`` and every model of timm; ``tf_efficientnet_lite0`` of
timm has weights that come as a package.

A module of this folder that builds a backbone has ``build(name, in_channels, freeze_norm, pooling, image_size)`` and
``load_weights(network, path)``. If the backbone starts from public weights by default, it also has
``cached_weights(name)``, and, if they can be had, ``download_weights(name)`` and ``EXTRA``, an extra with them. If it
has a pooling or an image size of its own, it has ``poolings`` and ``reads``.
"""
