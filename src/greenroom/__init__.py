"""greenroom: container images with exactly one prebuilt virtual environment for each Ray actor.

The distribution has two halves. What actors import (`greenroom.environments`) needs the standard
library alone. The pipeline (`greenroom[pipeline]`: manifest, plan, build, verify) runs on the host
and, where a step needs the same logic, inside the image's build.
"""
