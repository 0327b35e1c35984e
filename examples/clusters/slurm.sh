#!/bin/bash
# Two hosts with a process for each of four GPUs: sbatch examples/clusters/slurm.sh
#SBATCH --job-name=train_distributed
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
# Start again after a host failed, or was taken for another job: the run goes on where it was.
#SBATCH --requeue
#SBATCH --open-mode=append

export KERAS_BACKEND=${KERAS_BACKEND:-torch}
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))

# If one process ends with an error, all end; the loop starts them again, at most five times.
for attempt in 1 2 3 4 5; do
    srun --kill-on-bad-exit=1 bash -c '
        export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID
        exec python examples/train_distributed.py --novirtual --checkpoints "$SLURM_SUBMIT_DIR/run"
    ' && exit 0
    echo "attempt $attempt ended with an error" >&2
done
exit 1
