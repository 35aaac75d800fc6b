#!/bin/sh
# The runs on Pascal VOC of docs/results: sh docs/results/voc.sh VOCdevkit resnet50.safetensors OUT [JOBS [OPTION...]]
# Give it again to go on where it stopped; options (--set training.compile=true) go to every sweep.
# Nothing is chosen by looking at the validation images: all is as in the presets.
set -eu
data=$1 weights=$2 out=$3 jobs=${4:-1}
shift $(($# < 4 ? $# : 4))
options="$*"
sweep() {
    fiss sweep "$@" --share --jobs "$jobs" --out "$out" --set data.root="$data" --set model.weights="$weights" --set training.workers=3 $options
}
sweep voc-15-1-small --methods paper,mib-100,fbl-paper,fbl-reference
sweep voc-4-4-small voc-8-2-small --methods paper
sweep voc-15-1-small voc-4-4-small voc-8-2-small --methods ablations
sweep voc-8-2-small --methods fbl-reference,fbl-paper
sweep voc-15-1-small --methods rcil,plop --seeds 2024,2025
sweep voc-15-1-small voc-4-4-small voc-8-2-small --methods fbl,analytic --seeds 2023,2024,2025
sweep voc-15-1-small voc-4-4-small voc-8-2-small --methods joint
for setting in 15-1 4-4 8-2; do  # nothing is trained
    run=$out/voc-$setting-small-pretrained
    [ -d "$run" ] || fiss run voc-$setting-small --method analytic --set method.trunk=pretrained --out "$run" \
        --set data.root="$data" --set model.weights="$weights" --set training.workers=3 $options
done
out=$out/six  # local epochs in every task, as published; the small presets of 4-4 and 8-2 have two in the later tasks
sweep voc-8-2-small voc-4-4-small --methods mib,plop,rcil,fbl --set training.later_epochs=0
