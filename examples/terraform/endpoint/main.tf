# A Cloud Run service with a GPU, asleep while nobody asks.
#
#   terraform init && terraform apply

terraform {
  required_version = ">= 1.7"
}

provider "google" {
  project = "acme"
  region  = "us-central1"
}

module "endpoint" {
  source = "./modules/gcp-cloud-run-gpu"

  name            = "qwen"
  region          = "us-central1"
  image           = "us-docker.pkg.dev/acme/llm/qwen:1"
  gpu_type        = "nvidia-l4"
  min_instances   = 0
  max_instances   = 1
  concurrency     = 16
  startup_seconds = 240
  port            = 8000
  public          = false
}

output "url" {
  value = module.endpoint.url
}
