# A load-balanced endpoint on one 24 GB GPU that sleeps when nobody asks.
terraform {
  required_version = ">= 1.7"

  required_providers {
    restapi = {
      source  = "Mastercard/restapi"
      version = "~> 1.20.0"
    }
  }
}

variable "runpod_api_key" {
  type        = string
  description = "RunPod's API key; set TF_VAR_runpod_api_key. Providers' settings are not kept in the state."
  sensitive   = true
}

variable "image" {
  type        = string
  description = "Image built with zse build-image, in a public registry."
}

provider "restapi" {
  uri                  = "https://api.runpod.io"
  write_returns_object = true

  headers = {
    Authorization = "Bearer ${var.runpod_api_key}"
    Content-Type  = "application/json"
  }
}

module "zse" {
  source = "../../modules/runpod-endpoint"

  name      = "llm"
  image     = var.image
  gpu_types = ["ADA_24", "AMPERE_24"]
}

output "url" {
  description = "Address of the OpenAI API, without /v1."
  value       = module.zse.url
}
