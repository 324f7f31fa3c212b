"""From complete groups to committed policies.

``run`` trains, ``play`` plays groups, ``evaluating`` carries out `mtrl eval`: each inside a
`frame`, which is a run's life from its first file to its last. ``loop`` is the training itself,
step by step; what one step computes is in ``step/``, evaluations in ``evaluation/``, policies by
name in ``policies/``, what a dead run left in ``settling/``, and what a person is told in
``telling/``.
"""
