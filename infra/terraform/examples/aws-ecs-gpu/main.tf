# A model in the image, on one L4 instance that is started when somebody asks and stopped when nobody does.
terraform {
  required_version = ">= 1.7"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 5.100"
    }
  }
}

variable "vpc_id" {
  type        = string
  description = "VPC with the subnets."
}

variable "subnet_ids" {
  type        = list(string)
  description = "Private subnets in two zones, with a NAT gateway or endpoints."
}

variable "image" {
  type        = string
  description = "Image in ECR, built with zse build-image."
}

provider "aws" {
  region = "us-east-1"
}

module "zse" {
  source = "../../modules/aws-ecs-gpu"

  name          = "llm"
  vpc_id        = var.vpc_id
  subnet_ids    = var.subnet_ids
  allowed_cidrs = ["10.0.0.0/16"]
  image         = var.image
  gpu_type      = "g6.xlarge"
}

output "url" {
  description = "Address of the OpenAI API, without /v1, inside the VPC."
  value       = module.zse.url
}
