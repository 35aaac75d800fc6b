#!/bin/sh
# Every run of docs/results/monitors.md on shapes: sh docs/results/monitors.sh OUT "SEEDS" "MONITORS" [JOBS]
# Two worlds: everyone meets a task in the same round; and each site in its own, some stay, come and go, or get other images
# of the same classes.
set -eu
out=$1 seeds=$2 monitors=$3 jobs=${4:-2}
mkdir -p "$out"
same="--method fbl --set world.clients=6 --set world.joiners=2 --set world.per_round=2 --set world.sample_ratio=0.4 --set data.shapes_size=64 --set augment.crop=64 --set evaluation.size=64
    --set training.threads=1 --set training.horizon=3 --set monitor.probed=all --set monitor.sample=48 --set evaluation.every=task"
for seed in $seeds; do
    for monitor in $monitors; do
        for world in synchronous asynchronous; do
            own=""
            [ $world = asynchronous ] && own="--set world.lag=2 --set world.stay=0.2 --set world.join=any --set world.away=0.1 --set world.refresh=0.2"
            name=$out/$world-$monitor-$seed
            if [ -e "$name/config.toml" ]; then echo "resume $name"; else echo run shapes --monitor $monitor --seed $seed $same $own --out "$name"; fi
        done
    done
done | tr -s ' ' | xargs -P "$jobs" -I LINE sh -c "fiss LINE > /dev/null || echo failed: LINE"
