# A model in the image, served on one serverless A100 that sleeps when nobody asks.
terraform {
  required_version = ">= 1.7"

  required_providers {
    azurerm = {
      source  = "hashicorp/azurerm"
      version = "~> 4.73"
    }
  }
}

variable "subscription_id" {
  type        = string
  description = "Azure subscription."
}

variable "image" {
  type        = string
  description = "Image in the registry below, built with zse build-image."
}

variable "registry_id" {
  type        = string
  description = "Resource id of the container registry."
}

provider "azurerm" {
  subscription_id = var.subscription_id

  features {}
}

resource "azurerm_resource_group" "llm" {
  name     = "llm"
  location = "westus3"
}

module "zse" {
  source = "../../modules/azure-container-apps-gpu"

  name                = "llm"
  resource_group_name = azurerm_resource_group.llm.name
  region              = azurerm_resource_group.llm.location
  image               = var.image
  registry_server     = split("/", var.image)[0]
  registry_id         = var.registry_id
}

output "url" {
  description = "Address of the OpenAI API, without /v1."
  value       = module.zse.url
}
