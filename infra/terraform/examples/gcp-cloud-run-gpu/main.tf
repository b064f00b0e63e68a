# A model in a Cloud Storage bucket, served on one L4 that sleeps when nobody asks.
terraform {
  required_version = ">= 1.7"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = "~> 6.50"
    }
  }
}

variable "project" {
  type        = string
  description = "Google Cloud project."
}

variable "image" {
  type        = string
  description = "Image built with zse build-image --model volume."
}

variable "models_bucket" {
  type        = string
  description = "Bucket that holds model.zse."
}

provider "google" {
  project = var.project
}

module "zse" {
  source = "../../modules/gcp-cloud-run-gpu"

  name          = "llm"
  region        = "us-central1"
  image         = var.image
  models_bucket = var.models_bucket
  gpu_type      = "nvidia-l4"
  max_instances = 2
}

output "url" {
  description = "Address of the OpenAI API, without /v1."
  value       = module.zse.url
}
